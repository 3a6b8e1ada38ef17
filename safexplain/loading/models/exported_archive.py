"""A strict re-write of a `torch.export` archive, so that loading a stranger's file runs no code.

`torch.export.load` trusts its file: it unpickles weights that ask for it and sample inputs that need it,
opens compiled libraries, evaluates size expressions with SymPy, executes guards, writes names into generated
Python source, and calls whatever attribute of `torch` a node names. `rewrite` keeps only the members and the
strings that a plain exported network needs, checks each, and packs them into a new archive; anything else is
refused.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from typing import Any

import torch

from safexplain.errors import InputError

_CURRENT = re.compile(
    r"[^/]+/("
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)|version|"
    r"data/weights/weight_\d+|data/constants/tensor_\d+|"
    r"data/(weights/model_weights|constants/model_constants)_config\.json|"
    r"models/model\.json|data/sample_inputs/model\.pt)"
)
_FIRST = re.compile(  # the layout of PyTorch 2.5 to 2.7
    r"version|serialized_exported_program\.json|serialized_(state_dict|constants|example_inputs)\.pt"
)
_IGNORED = re.compile(r"([^/]+/)?(extra|extra_files)/.*|.*/")

_NAME = re.compile(r"[\w.\-]*", re.ASCII)
_VERSION = re.compile(r"[\w.+<=\-]*", re.ASCII)
_OPERATION = re.compile(
    r"torch\.ops\.aten\.(?!from_file\.|save\.)_?[a-zA-Z]\w*\.[a-zA-Z]\w*|"
    r"torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast|cond)|"
    r"_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|eq|ne|lt|le|gt|ge|and_|or_|not_)|"
    r"torch\.sym_(max|min|not|float|int|ite|sum)|math\.(trunc|ceil|floor)",
    re.ASCII,
)
_SIZE_PART = re.compile(  # as SymPy writes sizes; every character must belong to one of these
    r"Symbol\('[su]\d+'(, [a-z]+=(True|False))*\)|[-+*/(), <>=]|"
    r"\b([su]\d+|\d{1,18}|oo|true|false|Integer|Rational|Add|Mul|Pow|Max|Min|Mod|Abs|PythonMod|ModularIndexing|"
    r"FloorDiv|CeilDiv|CleanDiv|CeilToInt|FloorToInt|IntTrueDiv|PowByNatural|ToFloat|Identity|Equality|Unequality|"
    r"StrictLessThan|LessThan|StrictGreaterThan|GreaterThan)\b",
    re.ASCII,
)
_LONGEST_SIZE = 2000
_TREE_TYPES = {"builtins.tuple", "builtins.list", "builtins.dict", None}


def is_exported(names: list[str]) -> bool:
    """Whether these names of archive members are those of a `torch.export` file."""
    endings = {name.partition("/")[2] for name in names}
    return "archive_format" in endings or "serialized_exported_program.json" in names


def rewrite(raw: bytes) -> io.BytesIO:
    """A new archive with the checked content of `raw`, for `torch.export.load`.

    Metadata of nodes (stack traces) and guards are dropped, CUDA devices become the CPU, extra files are left
    out.

    Raises:
        InputError: the archive holds something that could run code, or that a plain exported network has not.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as source, zipfile.ZipFile(packed, "w") as target:
        names = [name for name in source.namelist() if not _IGNORED.fullmatch(name)]
        if len(set(names)) != len(names):
            raise _refusal("it holds two members of one name")
        for name in names:
            if not (_CURRENT.fullmatch(name) or _FIRST.fullmatch(name)):
                raise _refusal(f"it holds {name!r}, which a plain exported network has not")
            target.writestr(name, _checked(name, source.read(name)))
    packed.seek(0)
    return packed


def _refusal(reason: str) -> InputError:
    return InputError(
        f"this torch.export file is not loaded, because loading it might run code: {reason}; export the "
        "plain network again, pass its state_dict with --arch, or pass --trust-pickle if you trust whoever "
        "made the file"
    )


def _checked(name: str, content: bytes) -> bytes:
    if name.endswith(".pt"):
        try:
            torch.load(io.BytesIO(content), weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError):
            raise _refusal(f"its member {name!r} is a pickle of more than tensors") from None
        return content
    if not name.endswith(".json"):
        return content
    try:
        document = json.loads(content)
    except ValueError:
        raise InputError(
            f"the torch.export file is damaged: its member {name!r} is not JSON; export it again"
        ) from None
    if name.endswith(("model.json", "serialized_exported_program.json")) and isinstance(document, dict):
        document["guards_code"] = []
    return json.dumps(_clean(document, key="")).encode()


def _clean(value: Any, *, key: str) -> Any:
    """The same JSON value without metadata, with every string checked by the rule of its key."""
    if isinstance(value, dict):
        if value.keys() == {"type", "index"} and isinstance(value["type"], str):
            return {"type": "cpu", "index": None}
        for name in value:
            _check_string(name, key="")
        return {name: {} if name == "metadata" else _clean(inner, key=name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner, key=key) for inner in value]
    if isinstance(value, str):
        _check_string(value, key=key)
    if key == "use_pickle" and value is not False:
        raise _refusal("it asks to unpickle a weight")
    return value


def _check_string(value: str, *, key: str) -> None:
    if key in ("target", "as_operator"):
        allowed = _OPERATION.fullmatch(value) is not None and "__" not in value
    elif key == "expr_str":
        allowed = len(value) <= _LONGEST_SIZE and _SIZE_PART.sub("", value) == ""
    elif key in ("in_spec", "out_spec"):
        allowed = value == "" or _is_plain_tree(value)
    elif key == "torch_version":
        allowed = _VERSION.fullmatch(value) is not None
    else:
        allowed = key in ("as_string", "as_strings") or _NAME.fullmatch(value) is not None
    if not allowed:
        shown = value if len(value) <= 60 else value[:57] + "..."
        raise _refusal(f"its graph holds {shown!r} as {key or 'a name'}")


def _is_plain_tree(serialized: str) -> bool:
    """Whether a pytree specification nests tuples, lists and dicts only: other types may import modules."""
    try:
        protocol, spec = json.loads(serialized)
    except ValueError:
        return False
    pending = [spec]
    while pending:
        part = pending.pop()
        if not (isinstance(part, dict) and part.keys() == {"type", "context", "children_spec"}):
            return False
        if part["type"] not in _TREE_TYPES or not _is_keys(part["context"]):
            return False
        pending.extend(part["children_spec"])
    return bool(protocol == 1)


def _is_keys(context: Any) -> bool:
    """Whether the context of a tree node is nothing, or a list of plain keys, as that of a dict is."""
    if context is None or context == "null":
        return True
    try:
        keys = json.loads(context)
    except (TypeError, ValueError):
        return False
    return isinstance(keys, list) and all(isinstance(key, str) and _NAME.fullmatch(key) for key in keys)
