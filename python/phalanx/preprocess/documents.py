"""From a record of the input to the texts that are tokenized."""

import json

from phalanx.preprocess.refusal import BadDocument


def parse(line):
    """The JSON value of one line of bytes."""
    try:
        text = line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadDocument(f"is not UTF-8: {error.reason} at byte {error.start + 1}") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what = error.msg[:-3] if error.msg.endswith(" at") else error.msg
        raise BadDocument(f"is not JSON: {what} at character {error.pos + 1}") from None
    except ValueError as error:
        raise BadDocument(f"is not JSON that can be read: {error}") from None
    except RecursionError:
        raise BadDocument("is not JSON that can be read: nested too deeply") from None


def texts(record, keys):
    """For each key the texts of a document: one, or its sentences where the value is a list of them.

    A record is a line of JSON (bytes), a document itself (str, as in lm_dataformat's archives) or a mapping.
    """
    if isinstance(record, bytes):
        record = parse(record)
    if isinstance(record, str) and len(keys) == 1:
        record = {keys[0]: record}
    if not isinstance(record, dict):
        raise BadDocument(f"is no JSON object but {kind(record)}")
    return [sentences(record, key) for key in keys]


def sentences(record, key):
    if key not in record:
        raise BadDocument(f"has no key {key!r}; its keys: {', '.join(map(repr, list(record)[:10])) or 'none'}")
    value = record[key]
    found = value if isinstance(value, list) else [value]
    for text in found:
        if not isinstance(text, str):
            raise BadDocument(f"has no text under {key!r} but {kind(value)}")
        if not text.isascii():
            check_encodable(text, key)
    return found


def check_encodable(text, key):
    """JSON can say what UTF-8 cannot: half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadDocument(
            f"has half a surrogate pair under {key!r}, at character {error.start + 1}; no encoding has that"
        ) from None


def kind(value):
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    if isinstance(value, list) and value:
        return f"a list with {next((kind(item) for item in value if not isinstance(item, str)), 'strings')}"
    return names.get(type(value), "a number")
