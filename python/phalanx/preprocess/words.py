"""Tokenizes each word once: language repeats itself, and the library takes longer for a word than a look-up does.

A text may be cut between a printable ASCII character and a space, and its pieces tokenized alone, where the tokenizer
itself never joins what is on either side. `can_cut` knows those of whom that is certain: byte-level BPE with GPT-2's
pattern, of which no alternative goes on over white space. The result is that of the library, token by token.
"""

import array
import json
import re

# From a cut to the next. What is not ASCII stays with what is around it.
PIECE = re.compile(r" ?[!-~]+(?= |\Z)|.+?(?:(?<=[!-~])(?= )|\Z)", re.DOTALL)
CUT_INSIDE = re.compile(r"[!-~] ")
# About 200 bytes each.
KNOWN_PIECES = 200_000
# Longer ones are no words, and do not come again.
LONGEST_KNOWN = 40


def can_cut(tokenizer):
    """Whether the tokens of a text are those of its pieces. In doubt not."""
    parts = json.loads(tokenizer.to_str())
    model, splitter = parts["model"], parts["pre_tokenizer"] or {}
    return (
        model.get("type") == "BPE"
        and not model.get("dropout")
        and splitter.get("type") == "ByteLevel"
        and splitter.get("use_regex", True)
        and not splitter.get("add_prefix_space")
        and (parts["normalizer"] or {"type": "NFC"}).get("type") == "NFC"
        and (parts["post_processor"] or {"type": "ByteLevel"}).get("type") == "ByteLevel"
        and not any(joins(token) for token in parts["added_tokens"])
    )


def joins(added):
    """Whether an added token may reach over a cut."""
    takes_more = added["lstrip"] or added["rstrip"] or added["single_word"]
    return takes_more or CUT_INSIDE.search(added["content"]) is not None


class Words:
    """`encode_all(texts, typecode)`, an array of ids for each, behind a memory of pieces that is bounded.

    It keeps ids as bytes: joining those touches no id, where a list would make an object of each.
    """

    def __init__(self, encode_all):
        self.encode_all, self.typecode, self.known = encode_all, None, {}

    def encode(self, texts, typecode):
        if len(self.known) > KNOWN_PIECES or typecode != self.typecode:
            self.typecode, self.known = typecode, {}  # what comes often is soon back, also in another language
        pieces = [PIECE.findall(text) for text in texts]
        new = list(set().union(*pieces).difference(self.known))
        self.known.update((piece, ids.tobytes()) for piece, ids in zip(new, self.encode_all(new, typecode)))
        encoded = [array.array(typecode, b"".join(map(self.known.__getitem__, found))) for found in pieces]
        for piece in new:
            if len(piece) > LONGEST_KNOWN:
                del self.known[piece]
        return encoded
