"""What a model file is, read from its bytes, without loading it."""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from typing import Literal

from safexplain.errors import InputError
from safexplain.loading.models.exported_archive import is_exported

_FORMATS = "a torch.export archive, a state_dict (torch.save or safetensors) or a pickled model"
_FAMILIAR = re.compile(
    r"collections\.OrderedDict|_codecs\.encode|torch\.(_utils\._rebuild\w+|storage\.\w+|_tensor\.\w+|\w+Storage|"
    r"Size|device|Tensor|nn\.parameter\.Parameter|[a-z]+\d+\w*)"
)


def identify(raw: bytes, where: str) -> Literal["torch.export", "torch.save", "safetensors"]:
    """Tell the formats apart.

    Raises:
        InputError: a damaged archive, TorchScript, or no model at all.
    """
    if raw[:4] == b"PK\x03\x04":
        return _identify_zip(raw, where)
    if len(raw) > 8 and raw[8:9] == b"{" and int.from_bytes(raw[:8], "little") <= len(raw) - 8:
        return "safetensors"
    if raw[:1] == b"\x80":
        return "torch.save"  # PyTorch before 1.6, or pickle itself
    if raw.startswith(b"version https://git-lfs"):
        raise InputError(f"{where} is a pointer of Git LFS, not the model itself; run git lfs pull")
    raise InputError(f"{where} is not a model file (it starts with {raw[:12]!r}); expected {_FORMATS}")


def _identify_zip(raw: bytes, where: str) -> Literal["torch.export", "torch.save"]:
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        raise InputError(
            f"the model file {where} is damaged or cut short: it starts as a zip archive, but cannot be read "
            "as one; copy or save it again"
        ) from None
    if is_exported(names):
        return "torch.export"
    endings = {name.rpartition("/")[2] for name in names}
    if "constants.pkl" in endings:
        raise InputError(
            f"{where} is a TorchScript archive, which PyTorch has deprecated and an audit cannot "
            "differentiate reliably; export the original model with torch.export, or save its state_dict and "
            "pass --arch"
        )
    if "data.pkl" in endings:
        return "torch.save"
    hint = " (it looks like data: pass it as --data)" if any(name.endswith(".npy") for name in names) else ""
    raise InputError(f"{where} is a zip archive, but not of a model{hint}; expected {_FORMATS}")


def first_foreign_name(raw: bytes) -> str | None:
    """The first global name in a pickle that no state_dict needs, such as a class; None without one.

    The pickle is only read, never run; its strings are followed roughly, which is enough for a message.
    """
    if raw[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            name = next((n for n in archive.namelist() if n.rpartition("/")[2] == "data.pkl"), None)
            raw = b"" if name is None else archive.read(name)
    stream = io.BytesIO(raw)
    for _ in range(5):  # a legacy torch.save file is a row of pickles
        texts: list[str] = []
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                if isinstance(argument, str) and opcode.name != "GLOBAL":
                    texts.append(argument)
                found = ""
                if opcode.name == "GLOBAL":
                    found = str(argument).replace(" ", ".")
                elif opcode.name == "STACK_GLOBAL":
                    found = ".".join(texts[-2:]) or "unnamed"
                if found and not _FAMILIAR.fullmatch(found):
                    return found
        except Exception:  # damaged: nothing more to learn
            return None
    return None
