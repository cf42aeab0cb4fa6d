"""Archives as publishers pack them, and malicious ones."""

from __future__ import annotations

import io
import tarfile


def tar_gz(*entries: tuple[str, bytes | None]) -> bytes:
    """An archive; an entry without content is a link to /etc/passwd."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in entries:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content or b""))
    return packed.getvalue()
