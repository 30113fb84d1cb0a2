"""recorded.py without torch: rank 1 leaves the record of its exception that torch's @record leaves; the other waits."""

import json
import os
import signal
import time
import traceback


def inner():
    raise ValueError("the planned error")


def record(error):
    extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": message}, file)


def main():
    if os.environ["RANK"] != "1":
        signal.pause()  # ended by the round
    try:
        inner()
    except ValueError as error:
        record(error)
        raise


if __name__ == "__main__":
    main()
