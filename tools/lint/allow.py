"""Exceptions to rules, each with its reason, in allow.json. An exception that nothing needs any more is a finding."""

import fnmatch
import json

from tools.lint.project import Finding

ALLOW = "tools/lint/allow.json"


def load(project):
    """Entries: rule, path (a pattern), optionally text (part of the line), and the reason."""
    return json.loads(project.text(ALLOW)) if ALLOW in project.files else []


def covers(entry, project, finding):
    if entry["rule"] != finding.rule or not fnmatch.fnmatch(finding.path, entry["path"]):
        return False
    lines = project.text(finding.path).split("\n")
    return entry.get("text", "") in (lines[finding.line - 1] if finding.line <= len(lines) else "")


def apply(project, rules_run, findings):
    """Drops what is allowed; adds a finding for an entry without a reason and for one that is not needed."""
    entries, used, kept = load(project), set(), []
    for finding in findings:
        covering = [number for number, entry in enumerate(entries) if covers(entry, project, finding)]
        used.update(covering)
        if not covering:
            kept.append(finding)
    for number, entry in enumerate(entries):
        if not entry.get("reason"):
            kept.append(Finding(ALLOW, 1, "allow-list", f"say why {entry['path']} may break '{entry['rule']}'"))
        elif number not in used and entry["rule"] in rules_run:
            advice = f"{entry['path']} no longer breaks '{entry['rule']}'; remove its entry"
            kept.append(Finding(ALLOW, 1, "allow-list", advice))
    return kept
