"""Sites with tables of their own: the bits of a simulation, one schema for all, and a refusal of any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments import Rehearsal, digest
from fedal.data.schema import load_schema
from fedal.deploy.refusals import Refused
from fedal.deploy.site import Site
from fedal.errors import ConfigError
from fedal.records.loaded_model import load_model
from fedal.simulate.run import run
from site_tables import SIZES, write_sites


def rehearsal(folder: Path) -> Rehearsal:
    settings = write_sites(folder)
    for name, table in zip(SIZES, settings["clients"], strict=True):  # certificates are made for these names
        table["name"] = f"client-0{list(SIZES).index(name)}"
    return Rehearsal(folder, export=False, method="fedmd", **settings)


@pytest.mark.processes
def test_sites_with_tables_get_the_bits_of_the_simulation(tmp_path: Path) -> None:
    deployed = rehearsal(tmp_path)
    schema = load_schema(tmp_path / "schema.json")
    assert deployed.plan.contract.document["schema"] == schema.sha256
    with deployed.service() as service:
        joined = []
        for table in deployed.config.client_tables:
            data, name = Path(str(table.data)), str(table.name)
            joined.append(deployed.join_in_thread(name, data=data, schema=tmp_path / "schema.json"))
        for thread, failure in joined:
            thread.join(60)
            assert not failure
    assert not service.failure
    run(deployed.config, tmp_path / "run")
    for name in deployed.config.client_names:
        assert digest(tmp_path / f"{name}.safetensors") == digest(tmp_path / "run/models" / f"{name}.safetensors")
    site, simulated = (
        load_model(tmp_path / path) for path in ("client-00.safetensors", "run/models/client-00.safetensors")
    )
    assert site.about.data_schema == simulated.about.data_schema == schema
    x = site.read(Path(str(deployed.config.client_tables[0].data)))
    assert (site.predict(x) == simulated.predict(x)).all()


@pytest.mark.processes
def test_a_site_with_another_schema_or_none_is_refused_before_it_reads_its_data(tmp_path: Path) -> None:
    deployed = rehearsal(tmp_path)
    schema = load_schema(tmp_path / "schema.json")
    other = schema.model_copy(update={"positive": "no"})
    other.save(tmp_path / "other.json")
    (tmp_path / "private.csv").write_text("not read", encoding="utf-8")
    with deployed.service():
        for path, found in ((tmp_path / "other.json", other.sha256[:12]), (None, "none")):
            plan = deployed.site_plan("client-00")
            plan = type(plan)(**{**vars(plan), "data": tmp_path / "private.csv", "schema": path})
            with pytest.raises(Refused, match=f"federation is '{schema.sha256[:12]}', of this site '{found}'"):
                Site(plan, lambda text: None).run()


def test_a_server_needs_no_private_data_but_a_public_set_and_the_classes(tmp_path: Path) -> None:
    settings = write_sites(tmp_path)
    for site in SIZES:
        (tmp_path / f"{site}.csv").unlink()
    assert Rehearsal(tmp_path, export=False, **settings).plan.task.n_classes == 2
    del settings["schema_file"]
    again = tmp_path / "again"
    again.mkdir()
    with pytest.raises(ConfigError, match=r"the server needs `public`, and `schema_file` or deployment\.n_classes"):
        Rehearsal(again, export=False, **settings)
