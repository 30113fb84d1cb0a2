"""Reads what phalanx-run tells of a job's end: docs/formats/job-report.md."""

import json
import os
import stat

REPORT_BYTES_MAX = 16 << 20


class Failure:
    """One failed worker. `recorded`: the JSON object that torch's @record left, None where there is none such."""

    def __init__(self, fields):
        self.rank = fields["rank"]
        self.local_rank = fields["local_rank"]
        self.pid = fields["pid"]
        self.exit_code = fields["exit_code"]
        self.unix_ms = fields["unix_ms"]
        self.error_file = fields["error_file"]
        self.killed_by = fields.get("killed_by", "")  # "the out-of-memory killer of its cgroup (...)"
        self.blamed_on = fields.get("blamed_on", "")  # "XID 79 (...) on GPU 3, 0.4 s before"
        self.recorded, self.recorded_at = read_record(fields["error_json"])
        if self.recorded is None and self.error_file:  # a long text is cut on its way
            self.recorded, self.recorded_at = read_record(_text(read_own(self.error_file, REPORT_BYTES_MAX)))


class Report:
    def __init__(self, fields):
        self.script = fields["script"]
        self.reason = fields["reason"]
        self.restart_count = fields["restart_count"]
        self.rank_base = fields["rank_base"]
        self.workers = fields["workers"]
        self.failures = [Failure(failure) for failure in fields["failures"]]


def read_record(text):
    """(object, seconds since 1970) of an error.json as torch can read it; (None, 0) of any other text."""
    try:
        record = json.loads(text)
        message = record["message"]
        at = record.get("timestamp", 0) if isinstance(message, str) else message["extraInfo"]["timestamp"]
        return record, int(at)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, 0


def parse_report(text):
    """The Report, or None where the text is not one of version 1."""
    try:
        fields = json.loads(text)
        return Report(fields) if fields["version"] == 1 else None
    except (ValueError, KeyError, TypeError):
        return None


def read_private(path, limit=None):
    """The bytes of a plain file that only this user could have written; None where it is missing or is none."""
    return _read(path, limit, forbidden_mode=0o022)


def read_own(path, limit=None):
    """The bytes of a plain file of this user, whom else it may let write, too; None where it is missing or is none."""
    return _read(path, limit, forbidden_mode=0)


def _read(path, limit, forbidden_mode):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & forbidden_mode:
        os.close(fd)
        return None
    with open(fd, "rb") as file:
        return file.read() if limit is None else file.read(limit)


def read_report(path):
    return parse_report(_text(read_private(path, REPORT_BYTES_MAX)))


def _text(data):
    return "" if data is None else data.decode("utf-8", "replace")
