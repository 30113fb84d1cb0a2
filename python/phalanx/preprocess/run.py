"""A run from its options to its summary."""

import importlib.metadata
import os
import platform
import resource
import sys
import time

import phalanx
from phalanx._library import LibraryMissing
from phalanx.data import native
from phalanx.preprocess import commit, folders, inputs, options, plan, pool, spark, tokenization
from phalanx.preprocess import job as jobs
from phalanx.preprocess.progress import Meter, clock, rates
from phalanx.preprocess.refusal import Refused

LIBRARIES = {
    "CharLevelTokenizer": (),
    "TiktokenTokenizer": ("tiktoken",),
    "HFTokenizer": ("tokenizers",),
    "HFGPT2Tokenizer": ("tokenizers",),
    "GPT2BPETokenizer": ("tokenizers",),
}


def say(text):
    print(text, file=sys.stderr, flush=True)


def versions(chosen):
    """Of what makes the tokens."""
    names = (*LIBRARIES[chosen.tokenizer_type], *(("ftfy",) if chosen.ftfy else ()))
    found = {name: importlib.metadata.version(name) for name in names}
    return {"phalanx": phalanx.__version__, "python": platform.python_version(), **found}


def prepare(chosen, engine):
    """The job: everything that can be refused before any work is done."""
    options.check(chosen)
    native.library()
    files, left_out = inputs.collect(options.input_words(chosen.input), chosen.jsonl_keys, engine.inputs)
    for path in left_out:
        say(f"left out, no documents by its name: {path}")
    recipe = tokenization.read_recipe(chosen.tokenizer_type, chosen.vocab_file, chosen.merge_file)
    tokenizer = tokenization.build(recipe)
    if chosen.append_eod and tokenizer.eod is None:
        raise Refused(
            f"--append-eod: the tokenizer {chosen.vocab_file} has no token {tokenization.EOD}; leave --append-eod out, "
            "or add the token to it"
        )
    chosen.split_bytes = chosen.split_bytes or plan.split_bytes(files)
    splits = plan.cut(files, chosen.split_bytes)
    job = jobs.make(chosen, recipe, tokenizer, files, splits, versions(chosen))
    say(
        f"{chosen.tokenizer_type}: {tokenizer.vocab_size:,} tokens, {job.dtype}; {len(files)} input "
        f"{'file' if len(files) == 1 else 'files'}, {sum(one.size for one in files) / 1e6:,.1f} MB, "
        f"in {len(splits)} part{'s' * (len(splits) != 1)}"
    )
    return job


def tokenize(job, engine, resume, meter):
    """{number: notes} of all splits, those of an earlier run included."""
    notes = folders.found(job) if resume else {}
    dropped = folders.drop_others(job, notes)
    if notes or dropped:
        say(f"resumed: {len(notes)} of {job.parts} parts are finished; {dropped} of other options or input removed")
    for split in job.splits:
        if split.number in notes:
            meter.found(notes[split.number]["documents"], plan.weight(job.inputs, split))
    to_do = [split for split in job.splits if split.number not in notes]
    if to_do:
        try:
            notes.update(engine.run(job, to_do, meter))
        finally:
            meter.close()
    return notes


def finish(chosen, job, notes, meter, engine):
    work_s, began = meter.work_s, time.monotonic()
    inputs.check_unchanged(job.inputs, engine.size_and_mtime)
    errors_path = f"{job.output_prefix}.errors.jsonl"
    errors = commit.write_errors(errors_path, job, notes)
    counts = commit.publish(job, versions(chosen), time.time_ns() // 1_000_000, errors)
    folders.remove(job)
    summary(job, counts, meter, work_s, time.monotonic() - began)
    if errors:
        say(f"{errors:,} lines were no documents and are left out; they are listed in {errors_path}")


def summary(job, counts, meter, work_s, join_s):
    for key, count in counts.items():
        say(f"{job.prefix(key)}.bin, .idx: {count.documents:,} documents, {count.tokens:,} tokens")
    peak = max(own_peak_kib(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    tokenized = f"tokenized in {clock(work_s)} ({rates(meter.text_bytes, meter.tokens, work_s)}; {meter.workers}), "
    say(
        f"start-up {meter.start_up_s:.1f} s, {tokenized if meter.workers else ''}joined in {join_s:.1f} s; "
        f"largest process {peak / 1024:,.0f} MiB"
    )


def own_peak_kib():
    """getrusage would count what this process was before exec, too: a large parent."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def stopped(failure, job, engine):
    split = job.splits[failure.number]
    one = job.inputs[split.input]
    if one.is_remote and split.first_line is None:
        say(f"{one.path}: {failure.why}; counting the lines before it, which are read again")
    try:
        place = commit.place_of(job, split, failure.line, engine.lines_before)
    except (OSError, Refused):  # the bad line is what matters
        place = f"{one.path}, line {failure.line + 1} behind byte {split.start}"
    return (
        f"{place}: {failure.why}. Nothing was written; the "
        "same command with --resume --on-error skip leaves such lines out and lists them"
    )


def prepare_data(chosen, engine, meter):
    """Raises what main has sentences for."""
    job = prepare(chosen, engine)
    meter.total_bytes = sum(plan.weight(job.inputs, split) for split in job.splits)
    with folders.held(job, chosen.resume):
        if chosen.resume and commit.is_complete(job):
            say(f"{', '.join(map(job.prefix, job.keys))}: was complete; nothing is left to do")
            folders.remove(job)
            return
        try:
            notes = tokenize(job, engine, chosen.resume, meter)
        except pool.Stopped as error:
            raise Refused(stopped(error.failure, job, engine)) from None
        finish(chosen, job, notes, meter, engine)


def main(arguments=None, prog="phalanx-preprocess"):
    """0, or 1 with a sentence on stderr."""
    chosen = options.parser(prog).parse_args(arguments)
    meter = Meter(chosen.num_docs, chosen.log_interval)
    threads = chosen.engine == "threads"
    try:
        with pool.Engine(chosen.workers) if threads else spark.Engine(prog) as engine:
            prepare_data(chosen, engine, meter)
    except (Refused, native.DataError, LibraryMissing) as error:
        say(f"{prog}: {error}")
        return 1
    except OSError as error:
        say(f"{prog}: {error.filename or os.path.dirname(chosen.output_prefix) or '.'}: {error.strerror}")
        return 1
    except KeyboardInterrupt:
        say(f"{prog}: interrupted; finished parts are kept, and the same command with --resume goes on from them")
        return 130
    return 0
