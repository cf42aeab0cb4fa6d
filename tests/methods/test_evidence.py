"""Every method has a limit in which it equals another one bit for bit, and a check against plain autograd in fp64."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fedal import methods

HERE = Path(__file__).parent
CONFORMANCE, PRESETS, GROUPS, LESS, DATA_FREE = "conformance", "presets", "groups", "less_forgetting", "data_free"
DENSITY, SERVER, PERSONAL = "private_density", "server_distillation", "personal_teachers"
Test = tuple[str, str]
"""A file test_*.py of this folder, and the start of the name of a test in it, without `test_`."""

OF_A_PRESET: Test = (PRESETS, "a_preset_is_fedmd_with_its_options")
OF_THE_MEAN: Test = (PRESETS, "a_plain_mean_of_probabilities_is_the_same")
OF_FEDAVG: Test = (LESS, "without_its_term_a_method_is_fedavg")
OF_FEDAVG_TOO: Test = (DATA_FREE, "without_its_term_a_method_is_fedavg")
BY_LOSS: Test = (LESS, "rounds_equal_autograd")

LIMITS: dict[str, Test] = {
    "local": (CONFORMANCE, "local_training_does_not_depend_on_the_other_clients"),
    "fedmd": (CONFORMANCE, "fedal_without_adversary_and_anchors_is_fedmd"),
    "fedmd-lf": (CONFORMANCE, "fedmd_lf_without_anchors_is_fedmd"),
    "fedal": (CONFORMANCE, "fedal_without_the_adversary_is_fedmd_lf"),
    "fedproto": ("fedproto", "without_its_term_it_is_local_only"),
    "fedproto-public": ("fedproto", "on_public_data_without_its_term_it_is_local_only"),
    "fd": ("fd", "without_its_term_it_is_local_only"),
    "hfd": ("hfd", "without_other_clients_it_is_local_only"),
    "fedavg": OF_FEDAVG,
    "feddf": (GROUPS, "feddf_with_groups_of_one_is_fedmd"),
    "feddf-al": (GROUPS, "feddf_al_with_groups_of_one_is_fedal"),
    "fccl": ("fccl", "without_its_losses_it_is_local_only"),
    "fccl+": ("fccl_plus", "without_its_losses_it_is_local_only"),
    "perfed-ckt": OF_THE_MEAN,
    "cfd": (SERVER, "mhat_is_cfd_at_32_bits"),
    "mhat": (SERVER, "mhat_is_cfd_at_32_bits"),
    "fedgkt": ("fedgkt", "without_distillation_it_is_local_only"),
    **dict.fromkeys(("fedlsd", "fedntd", "fedgkd", "kim-2024", "fedrad", "fedssd"), OF_FEDAVG),
    **dict.fromkeys(("fedreg", "flashback", "fedbr", "fedcurv"), OF_FEDAVG),
    "pfedsd": (LESS, "pfedsd_without_its_term_is_fedavg"),
    **dict.fromkeys(("feddistill+", "fedgen", "fedftg", "dfrd"), OF_FEDAVG_TOO),
    "fedzkt": (DATA_FREE, "fedzkt_without_server_and_proximity_is_local"),
    "fedcvae": (DATA_FREE, "fedcvae_before_its_exchange_is_local"),
    "ds-fl": OF_A_PRESET,
    "cronus": OF_A_PRESET,
    "fedgems": OF_A_PRESET,
    "fedeven": (PRESETS, "fedeven_is_fedmd_where_its_loss_evens_nothing_out"),
    "fedlift": (PRESETS, "fedlift_is_fedeven_where_its_server_lifts_nothing"),
    "expguard": OF_THE_MEAN,
    "kt-pfl": OF_THE_MEAN,
    "scarlet": ("scarlet", "without_a_cache_it_is_fedmd"),
    "selective-fd": OF_THE_MEAN,
    "fedaux": (DENSITY, "equal_scores_are_the_inclusive_mean"),
    "uwa": (DENSITY, "uwa_is_fedaux_with_a_density"),
    "fedkt": ("fedkt", "before_the_vote_a_single_teacher_is_local_training"),
}
AUTOGRAD: dict[str, Test] = {
    "local": (CONFORMANCE, "local_training_equals_autograd"),
    "fedmd": (CONFORMANCE, "fedmd_equals_autograd"),
    "fedmd-lf": (CONFORMANCE, "fedal_equals_autograd"),
    "fedal": (CONFORMANCE, "fedal_equals_autograd"),
    "fedproto": ("fedproto", "a_round_equals_autograd"),
    "fedproto-public": ("fedproto", "on_public_data_a_round_equals_autograd"),
    "fd": ("fd", "a_round_equals_autograd"),
    "hfd": ("hfd", "a_round_equals_autograd"),
    "fedavg": (GROUPS, "fedavg_equals_a_plain_loop"),
    "feddf": (GROUPS, "a_round_equals_autograd"),
    "feddf-al": (GROUPS, "a_round_equals_autograd"),
    "fccl": ("fccl", "fccl_equals_autograd"),
    "fccl+": ("fccl_plus", "fccl_plus_equals_autograd"),
    "perfed-ckt": ("perfed_ckt", "rounds_equal_autograd"),
    "cfd": (SERVER, "the_algorithm_written_with_autograd"),
    "mhat": (SERVER, "the_algorithm_written_with_autograd"),
    "fedgkt": ("fedgkt", "the_algorithm_written_with_autograd"),
    **dict.fromkeys(("fedlsd", "fedntd", "kim-2024", "fedrad", "fedssd", "fedbr"), BY_LOSS),
    "fedgkd": (LESS, "fedgkd_distils_the_mean"),
    "pfedsd": (LESS, "pfedsd_distils_the_previous"),
    "fedreg": (LESS, "fedreg_projects_every_step"),
    "flashback": (LESS, "flashback_weights_its_teachers"),
    "fedcurv": (LESS, "fedcurv_penalises"),
    "feddistill+": (DATA_FREE, "feddistill_plus_teaches"),
    "fedgen": (DATA_FREE, "fedgen_trains_its_generator"),
    "fedftg": (DATA_FREE, "fedftg_plays_its_game"),
    "dfrd": (DATA_FREE, "dfrd_replays"),
    "fedzkt": (DATA_FREE, "fedzkt_plays_its_game"),
    "fedcvae": (DATA_FREE, "fedcvae_trains_decoders"),
    **dict.fromkeys(("ds-fl", "cronus", "fedgems"), (PRESETS, "a_preset_equals_autograd")),
    "fedeven": (PRESETS, "fedeven_equals_autograd"),
    "fedlift": (PRESETS, "fedlift_equals_autograd"),
    "expguard": (PERSONAL, "expguard_equals_autograd"),
    "kt-pfl": (PERSONAL, "kt_pfl_equals_autograd"),
    "scarlet": ("scarlet", "scarlet_equals_autograd"),
    "selective-fd": (DENSITY, "selective_fd_equals_autograd"),
    **dict.fromkeys(("fedaux", "uwa"), (DENSITY, "weighted_means_equal_autograd")),
    "fedkt": ("fedkt", "fedkt_equals_plain_training"),
}


@pytest.mark.parametrize("evidence", [LIMITS, AUTOGRAD], ids=["limits", "autograd"])
def test_every_method_names_a_test_that_exists_and_mentions_it(evidence: dict[str, Test]) -> None:
    assert [*methods.MODULES.keys() - evidence.keys()] == [] and evidence.keys() <= methods.MODULES.keys()
    for name, (file, start) in evidence.items():
        source = (HERE / f"test_{file}.py").read_text(encoding="utf-8")
        tests = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        assert any(test.startswith(f"test_{start}") for test in tests), (name, file, start)
        assert f'"{name}"' in source or f"{name.replace('-', '_')}.METHOD" in source, (name, file)
