"""One split to its parts: the same function in a process of ours and in a Spark executor."""

import array
import contextlib
import dataclasses
from typing import List

from phalanx.preprocess import documents, part, readers, tokenization
from phalanx.preprocess.refusal import BadDocument, Refused, need

# What is tokenized at once: large enough to be quick, small enough that memory is flat.
BATCH_DOCUMENTS = 256
BATCH_CHARACTERS = 1 << 20
# Errors that a part lists; of a file that is no text at all the rest is counted.
LISTED_ERRORS = 10_000


@dataclasses.dataclass
class Progress:
    """What was done since the last word."""

    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0
    input_bytes: int = 0


class BadLine(Exception):
    """The first line that is no document, where `--on-error fail` stands."""

    def __init__(self, number, line, why):
        super().__init__(number, line, why)
        self.number, self.line, self.why = number, line, why


class Worker:
    def __init__(self, job, split, report, reader=None):
        self.reader = reader or readers.open_split(job.inputs[split.input], split, list(job.keys))
        self.job, self.split, self.report = job, split, report
        self.tokenizer = tokenization.build(job.recipe)
        self.repair = need("ftfy", "ftfy", "--ftfy").fix_text if job.ftfy else None
        _, self.typecode = part.TYPES[job.dtype]
        if job.append_eod:
            self.check_fits(self.tokenizer.eod)
        self.errors: List[list] = []
        self.unlisted = 0
        self.totals = Progress()

    def run(self):
        """The notes of the parts, and the files in which they are whole. `report` gets a Progress now and then."""
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(self.writer(key)) for key in self.job.keys]
            for batch in self.batches():
                tokens = self.write(batch, writers)
                self.tell(batch, tokens, self.reader.position())
            notes = {
                "lines": self.reader.lines,
                "documents": self.totals.documents,
                "text_bytes": self.totals.text_bytes,
                "errors": self.errors,
                "unlisted_errors": self.unlisted,
            }
            for writer in writers:
                writer.finish({**notes, "tokens": writer.tokens})
        return {**notes, "tokens": self.totals.tokens}, [writer.temporary for writer in writers]

    def writer(self, key):
        folder = part.folder_of(self.job.prefix(key))
        return part.PartWriter(folder, self.split.number, self.job.parts, self.job.dtype, self.job.fingerprints[key])

    def batches(self):
        """Lists of documents; a document is a list of texts for each key."""
        batch, characters = [], 0
        for line, record in self.reader:
            try:
                document = documents.texts(record, self.job.keys)
            except BadDocument as error:
                self.note(line, str(error))
                continue
            batch.append(document)
            characters += sum(len(text) for texts in document for text in texts)
            if len(batch) >= BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch

    def note(self, line, why):
        if not self.job.skip_errors:
            raise BadLine(self.split.number, line, why)
        if len(self.errors) < LISTED_ERRORS:
            self.errors.append([line, why])
        else:
            self.unlisted += 1

    def write(self, batch, writers):
        """Tokenizes a batch and writes it to the part of each key. How many tokens that were."""
        flat = [text for document in batch for texts in document for text in texts]
        if self.repair:
            flat = [self.repair(text) for text in flat]
        encoded = iter(self.encode(flat))
        before = sum(writer.tokens for writer in writers)
        for document in batch:
            for texts, writer in zip(document, writers):
                sequences = [ids for ids in (next(encoded) for _ in texts) if ids]
                if sequences and self.job.append_eod:
                    sequences[-1].append(self.tokenizer.eod)
                writer.add(sequences)
        return sum(writer.tokens for writer in writers) - before

    def encode(self, texts):
        """An array of the part's type for each."""
        try:
            return self.tokenizer.encode(texts, self.typecode)
        except OverflowError:
            self.check_fits(max(max(ids) for ids in self.tokenizer.encode(texts, "q") if ids))
            raise

    def check_fits(self, token):
        try:
            array.array(self.typecode, [token])
        except OverflowError:
            raise Refused(
                f"the tokenizer's vocabulary has {self.tokenizer.vocab_size} entries, but it gave a token of {token}: "
                f"its ids have gaps, which {self.job.dtype} cannot hold"
            ) from None

    def tell(self, batch, tokens, position):
        text_bytes = sum(len(text.encode()) for document in batch for texts in document for text in texts)
        done = Progress(len(batch), text_bytes, tokens, position - self.totals.input_bytes)
        for field in dataclasses.fields(Progress):
            setattr(self.totals, field.name, getattr(self.totals, field.name) + getattr(done, field.name))
        self.report(done)


def process(job, split, report):
    """Makes the parts of a split; returns their notes. Raises BadLine, Refused and OSError."""
    notes, temporaries = Worker(job, split, report).run()
    publish(temporaries, split)
    return notes


def publish(temporaries, split):
    for temporary in temporaries:
        part.publish(temporary, split.number)


def attempt(job, work):
    """What came of it: ("done", its result), ("bad", the arguments of BadLine) or ("refused", a sentence)."""
    try:
        return "done", work()
    except BadLine as failure:
        return "bad", failure.args
    except Refused as error:
        return "refused", str(error)
    except FileNotFoundError as error:
        return (
            "refused",
            f"{error.filename}: is not there for a worker, or the driver; inputs and output must be, for all of them",
        )
    except OSError as error:
        return "refused", f"{error.filename or job.output_prefix}: {error.strerror}"
