"""Finds the texts that users read in C++ sources: errors, warnings and help. Every literal of some words is one, so nothing
depends on the helper that builds it. Pieces joined by + and <<, or by commas in LibTorch's texts, are one text, and a
placeholder stands for each value."""

import re

# Where a value stands, and the word that stands for it in a text.
VALUE, WORD = "\0", "x"
FEWEST_WORDS = 4
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|#[^\n]*|R"(?P<mark>[^\s()\\"]*)\((?P<raw>.*?)\)(?P=mark)"'
                   r'|"(?P<literal>(?:[^"\\\n]|\\.)*)"|\'(?:[^\'\\\n]|\\.)+\''
                   r"|(?P<word>[A-Za-z_0-9][\w:.'~]*)|(?P<separator><<|[(){}\[\];,?:])|.", re.DOTALL)
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\"": '"', r"\\": "\\"}
PLACEHOLDER = re.compile(r"(?<!\{)\{[^{}\s]*\}")
# Their arguments are the pieces of one text.
JOINS_ARGUMENTS = re.compile(r"^(?:c10::str|TORCH_\w+)$")
OPEN, CLOSED = "({[", ")}]"


def tokens_of(source):
    """(line number, kind, text): literals as they are read, words, and separators, which are their own kind."""
    line = 1
    for match in TOKEN.finditer(source):
        if match["raw"] is not None:
            yield line, "literal", match["raw"]
        elif match["literal"] is not None:
            text = re.sub(r"\\.", lambda each: ESCAPES.get(each[0], each[0]), match["literal"])
            yield line, "literal", PLACEHOLDER.sub(VALUE, text)
        elif match["word"]:
            yield line, "word", match["word"]
        elif match["separator"]:
            yield line, match["separator"], match["separator"]
        line += match[0].count("\n")


class Pieces:
    """The text that is being joined in one pair of brackets."""

    def __init__(self, joins):
        self.joins, self.is_list = joins, False
        self.line, self.text, self.others = 0, "", []

    def add(self, line, text):
        self.line = self.line or line
        self.text += text

    def value(self):
        """A value stands between two pieces, or before the first."""
        if not self.text.endswith(VALUE):
            self.text += VALUE

    def take(self):
        """(line, text) of each branch of `a ? b : c`, the longest first, or of the one text."""
        branches = sorted([(self.line, self.text), *self.others], key=lambda each: len(each[1]), reverse=True)
        self.line, self.text, self.others = 0, "", []
        return branches


def texts_of_source(source):
    """(line number, text) of every text of at least FEWEST_WORDS words; one that goes on begins with a space."""
    stack, found, word = [Pieces(joins=False)], set(), ""
    for line, kind, text in tokens_of(source):
        top, callee = stack[-1], word
        word = text if kind == "word" else ""
        if kind == "literal":
            top.add(line, text)
        elif kind == "word":
            if text in ("return", "throw"):
                found.update(top.take())
            else:
                top.value()
        elif kind in OPEN:
            if callee and top.text.endswith(VALUE):
                top.text = top.text[:-len(VALUE)]
            if kind == "{":
                found.update(top.take())
            stack.append(Pieces(joins=bool(JOINS_ARGUMENTS.match(callee))))
        elif kind in CLOSED and len(stack) > 1:
            longest, *others = stack.pop().take()
            found.update(others)
            if kind == ")" and longest[0] and not top.is_list:
                stack[-1].add(*longest)
                continue
            found.add(longest)
            stack[-1].value()
            if kind == "}":
                found.update(stack[-1].take())
        elif kind == ";" or (kind == "," and not top.joins):
            top.is_list |= kind == ","
            found.update(top.take())
        elif kind in "?:":
            if kind == ":":
                top.others.append((top.line, top.text))
            top.line, top.text = 0, ""
        elif kind in ("<<", ",") and not top.line:
            top.text = ""  # A stream, or the condition of TORCH_CHECK, is no part of the text.
    found.update(each for pieces in stack for each in pieces.take())
    return sorted((line, text.replace(VALUE, WORD).rstrip()) for line, text in found
                  if line and len(text.split()) >= FEWEST_WORDS)
