"""Finds prose that has to be read twice: paragraphs and comments that begin as fragments, words that stand for a term of
the field, and sentences of more than 30 words. In C++ it looks at errors, warnings and help as well.
`python3 tests/form/prose.py [PATH...]` lists what it finds."""

import collections
import pathlib
import re
import sys

from texts import texts_of_source

MOST_WORDS = 30
# A paragraph that begins with one of these needs a main clause of its own: a comma, and a verb after it.
OPENINGS = re.compile(r"^(Of|What|Those|That|Where|By|As|Nor|So|For)\b")
VERB = re.compile(r"\b(is|are|was|were|be|has|have|had|does|do|did|can|could|must|may|might|will|would|should|needs?|\w{2,}(?:s|ed))\b")
WORDS = re.compile(r"\b(of which|those that|(?:is|are) let go|lets? go of|gives? up|given up|goes (?:first|next|last|away)"
                   r"|comes? again|made again)\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`|\[([^\]]*)\]\([^)]*\)|https?://\S+")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"(])|[;:]\s")
# A line of a list, a table, a picture or code inside a comment: no prose, or a paragraph of its own.
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
# An error begins with the function that throws it, or with the option that is wrong.
CALLER = re.compile(r"^[\w:.()]*: ")
NO_PROSE = re.compile(r"^(?: {2,}|\t)|^\s*\||[│─▼►└┌=<>{}]{2,}|;\s*$")

Finding = collections.namedtuple("Finding", "line kind text")


def paragraphs_of_lines(lines):
    """(line number, text) of each paragraph; `lines` are (number, text) of one block."""
    block, first = [], 0
    for number, text in lines:
        if ITEM.match(text) or not text.strip() or NO_PROSE.search(text):
            if block:
                yield first, " ".join(block)
            block = []
            if not ITEM.match(text):
                continue
            text = ITEM.sub("", text)
        if not block:
            first = number
        block.append(text.strip())
    if block:
        yield first, " ".join(block)


def paragraphs_of_markdown(text):
    lines, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
            line = ""
        is_prose = not fenced and not line.startswith(("#", "|", "<"))
        # A list's items go on, indented.
        lines.append((number, re.sub(r"^ {2,4}(?=\S)", "", line) if is_prose else ""))
    return paragraphs_of_lines(lines)


def paragraphs_of_comments(text, mark):
    """Comments that fill their lines; those behind code are notes of a few words."""
    block = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith(mark):
            block.append((number, stripped[len(mark):].removeprefix(" ")))
        elif block:
            yield from paragraphs_of_lines(block)
            block = []
    if block:
        yield from paragraphs_of_lines(block)


def paragraphs_of(path):
    text = path.read_text()
    if path.suffix == ".md":
        return paragraphs_of_markdown(text)
    return paragraphs_of_comments(text, "//" if path.suffix in (".h", ".cpp") else "#")


def findings_in(paragraphs):
    for line, text in paragraphs:
        plain = CODE.sub(lambda match: match[1] or "x", text)
        sentences = [each for each in SENTENCE_END.split(plain) if each.strip()]
        if not sentences:
            continue
        opening = sentences[0]
        if OPENINGS.match(opening):
            _, comma, rest = opening.partition(",")
            if not comma or not VERB.search(rest):
                yield Finding(line, "fragment", opening)
        for match in WORDS.finditer(plain):
            yield Finding(line, f'"{match[0]}"', plain[max(match.start() - 30, 0):match.end() + 30])
        for each in sentences:
            count = len(each.split())
            if count > MOST_WORDS:
                yield Finding(line, f"{count} words", each)


def findings(path):
    return list(findings_in(paragraphs_of(path)))


def findings_in_texts(source):
    """Those in the texts that users read: errors, warnings and help."""
    texts = ((line, CALLER.sub("", text)) for line, text in texts_of_source(source))
    return list(findings_in((line, text[:1].upper() + text[1:]) for line, text in texts))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        found = findings(path) + (findings_in_texts(path.read_text()) if path.suffix in (".h", ".cpp") else [])
        for each in sorted(found):
            print(f"{name}:{each.line}: {each.kind}: {each.text}")
