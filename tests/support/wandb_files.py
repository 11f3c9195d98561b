"""What W&B has written in offline mode: records of protobuf, in the blocks of a LevelDB log."""

import struct

HEADER, BLOCK = 7, 32768


def logged_in(file):
    """The id of the run, and by step the numbers that were logged, as JSON."""
    from wandb.proto.wandb_internal_pb2 import Record

    known_as, history = None, {}
    for data in _records(file.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("run"):
            known_as = record.run.run_id
        if record.HasField("history"):
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            history[int(items["_step"])] = items
    return known_as, history


def _records(content):
    place, parts = HEADER, b""
    while place + HEADER <= len(content):
        if (left := BLOCK - place % BLOCK) < HEADER:  # what is too short for a record is padding
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + HEADER])
        parts += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
