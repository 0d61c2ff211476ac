"""Turns a CUDA source into C++ for the stand-in beside this file.

usage: cuda_to_cpp.py SOURCE NAME OUTPUT; NAME is what compilers call the source in messages

Two things of CUDA's are no C++, and only they are rewritten, on the lines where they stand:

    kernel<T><<<grid, block, 0, stream>>>(a, b);    Launch("kernel<T>", grid, block, 0, stream)(kernel<T>, a, b);
    __shared__ float sums[8];                       auto& sums = shared<float[8], decltype([] {})>();

A launch or an array that is written otherwise is refused, with its line.
"""

import re
import sys

TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<text>R"(?P<end>[^()\s\\"]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
    |(?P<number>\.?\d(?:[eEpP][+-]|'?\w|\.)*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
CLOSING = {"(": ")", "[": "]", "{": "}"}
NAMESPACE = "::troupe::cuda_stand_in::"


class Refused(Exception):
    def __init__(self, at, why):
        super().__init__(why)
        self.at = at


class Token:
    def __init__(self, match):
        self.kind = match.lastgroup if match.lastgroup != "end" else "text"
        self.text = match.group()
        self.begin = match.start()
        self.end = match.end()


class Source:
    def __init__(self, text):
        self.text = text
        self.tokens = [t for t in map(Token, TOKEN.finditer(text)) if t.kind != "blank"]

    def is_at(self, i, signs):
        """Whether these signs stand at the i-th token with nothing between them."""
        found = self.tokens[i : i + len(signs)]
        return "".join(t.text for t in found) == signs and all(
            a.end == b.begin for a, b in zip(found, found[1:])
        )

    def between(self, first, last):
        """What stands from token to token, the last one left out, on one line without comments."""
        return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", self.slice(first, last), flags=re.DOTALL).split())

    def slice(self, first, last):
        if first == last:
            return ""
        return self.text[self.tokens[first].begin : self.tokens[last - 1].end]

    def closing_of(self, i):
        """The index of the bracket that closes the i-th token, which opens one."""
        open_ones = []
        for j in range(i, len(self.tokens)):
            sign = self.tokens[j].text
            if sign in CLOSING:
                open_ones.append(CLOSING[sign])
            elif sign in CLOSING.values():
                if sign != open_ones.pop():
                    raise Refused(i, "brackets do not match")
                if not open_ones:
                    return j
        raise Refused(i, "a bracket is not closed")


def begin_of_kernel(source, launch):
    """The index of the kernel's name before <<<: a name with or without template arguments."""
    tokens = source.tokens
    i = launch - 1
    if i >= 0 and tokens[i].text == ">":
        depth = 0
        while i >= 0:
            token = tokens[i]
            if token.text == ">":
                depth += 1
            elif token.text == "<":
                depth -= 1
                if depth == 0:
                    break
            elif token.kind not in ("name", "number") and token.text not in ",:*&":
                raise Refused(launch, f"{token.text!r} among the kernel's template arguments")
            i -= 1
        i -= 1
    if i < 0 or tokens[i].kind != "name":
        raise Refused(launch, "no kernel's name before <<<")
    while i >= 3 and source.is_at(i - 2, "::" + tokens[i].text) and tokens[i - 3].kind == "name":
        i -= 3
    if i == 0 or (tokens[i - 1].text not in ";{})" and tokens[i - 1].text != "else"):
        raise Refused(launch, "the launch is no statement of its own")
    return i


def configuration(source, launch):
    """The parts between <<< and >>> as text, and the index of what follows."""
    tokens = source.tokens
    parts, begin, angles = [], launch + 3, 0
    i = begin
    while i < len(tokens):
        token = tokens[i]
        if token.text in CLOSING:
            i = source.closing_of(i)
        elif angles == 0 and source.is_at(i, ">>>"):
            parts.append(source.between(begin, i))
            if not 2 <= len(parts) <= 4 or not all(parts):
                raise Refused(launch, f"{len(parts)} parts between <<< and >>>")
            return parts, i + 3
        elif token.text == "<" and tokens[i - 1].kind == "name" and tokens[i - 1].end == token.begin:
            angles += 1
        elif token.text == ">" and angles > 0:
            angles -= 1
        elif token.text == "," and angles == 0:
            parts.append(source.between(begin, i))
            begin = i + 1
        elif token.text in "<>;)]}":
            raise Refused(launch, f"{token.text!r} between <<< and >>>")
        i += 1
    raise Refused(launch, "<<< without >>>")


def rewritten_launch(source, launch):
    """First and last index of the tokens that go, and what comes in their place."""
    tokens = source.tokens
    first = begin_of_kernel(source, launch)
    kernel = source.between(first, launch)
    parts, opening = configuration(source, launch)
    if opening >= len(tokens) or tokens[opening].text != "(":
        raise Refused(launch, "no arguments after >>>")
    closing = source.closing_of(opening)
    if closing + 1 >= len(tokens) or tokens[closing + 1].text != ";":
        raise Refused(launch, "the launch does not end its statement")
    if any(source.is_at(i, "<<<") for i in range(opening, closing)):
        raise Refused(launch, "a launch among the arguments")
    comma = "" if closing == opening + 1 else ", "
    call = f'{NAMESPACE}Launch("{kernel}", {", ".join(parts)})({kernel}{comma}'
    return first, opening, call


def rewritten_array(source, shared):
    """Likewise for a __shared__ declaration."""
    tokens = source.tokens
    if shared == 0 or tokens[shared - 1].text not in ";{}":
        raise Refused(shared, "a shared array is declared by a statement of its own")
    end = next((i for i in range(shared, len(tokens)) if tokens[i].text == ";"), None)
    if end is None:
        raise Refused(shared, "a declaration without end")
    name = end - 1
    while name > shared and tokens[name].text == "]":
        while name > shared and tokens[name].text != "[":
            name -= 1
        name -= 1
    kind = source.between(shared + 1, name)
    if not kind or tokens[name].kind != "name":
        raise Refused(shared, "not: __shared__ TYPE NAME[COUNT]")
    depth = 0
    for token in tokens[shared + 1 : name]:
        depth += {"<": 1, ">": -1}.get(token.text, 0)
        known = token.kind in ("name", "number") or token.text in "<>:" or (token.text == "," and depth > 0)
        if not known:
            raise Refused(shared, f"{token.text!r} in a shared array's declaration")
    array = kind + source.between(name + 1, end)
    declaration = f"auto& {tokens[name].text} = {NAMESPACE}shared<{array}, decltype([] {{}})>()"
    return shared, end - 1, declaration


def rewrite(text):
    """The source as C++, with as many lines."""
    source = Source(text)
    edits = []
    for i, token in enumerate(source.tokens):
        if source.is_at(i, "<<<"):
            edits.append(rewritten_launch(source, i))
        elif token.text == "__shared__":
            edits.append(rewritten_array(source, i))
    for first, last, new in reversed(edits):
        begin, end = source.tokens[first].begin, source.tokens[last].end
        lines = "\n" * text.count("\n", begin, end)
        text = text[:begin] + new + lines + text[end:]
    return text


def main(path, name, output):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        cpp = rewrite(text)
    except Refused as refused:
        line = text.count("\n", 0, Source(text).tokens[refused.at].begin) + 1
        print(f"{path}:{line}: cannot be made C++: {refused}", file=sys.stderr)
        return 1
    with open(output, "w", encoding="utf-8") as file:
        file.write(f'#line 1 "{name}"\n{cpp}')
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
