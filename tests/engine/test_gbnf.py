"""engine.gbnf: a grammar of llama.cpp means here what it means there."""

import pytest

from engine.grammar import GrammarError, context_free_grammar
from tests.engine.bytes_grammar import fits

ARITHMETIC = """
# from llama.cpp's examples
root  ::= (expr "=" ws term ";")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \\t\\n]*
"""


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (ARITHMETIC, ["a1=2;", "(a+1)*b = 7\n;1=1;"], ["a1=2", "1+=2;"]),
        ('root ::= ("a"*)*', ["a", "aaa"], ["b"]),
        ('root ::= (("a"?)+ "b"){2}', ["bb", "abaab"], ["b", "abbb"]),
        ('root ::= "a"{2,3} | [b]{1,}', ["aa", "aaa", "bbb"], ["a", "aaaa"]),
        (r'root ::= "\u0041\x42\n\"\U0001F600é"', ['AB\n"😀é'], ["AB"]),
        (r"root ::= [^a-c\]\\/-]", ["d", "[", "é"], ["b", "]", "\\", "/", "-"]),
        ("root ::= [-a-c-e]", ["-", "b", "e"], ["d"]),
        ("root ::= .", ["a", "\n", "é"], ["", "ab"]),
        ('root ::= "a" fooBar foo-bar\nfooBar ::= "1"\nfoo-bar ::= "2"', ["a12"], ["a21"]),
        ('root ::= | "a" ( | "b")', ["", "a", "ab"], ["b"]),
        ('root ::=\n  "a"\n  | "b" root # more\r\n', ["a", "bba"], ["b"]),
        ('root ::= x\nx ::= "(" x ")" | y y\ny ::= "1"', ["((11))"], ["(1)"]),
    ],
)
def test_a_grammar_in_gbnf_lets_through_what_it_describes(grammar: str, right: list[str], wrong: list[str]) -> None:
    made = context_free_grammar(grammar)
    assert [text for text in right if not fits(made, text)] == []
    assert [text for text in wrong if fits(made, text)] == []


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        ('root ::= "a"\nroot ::= "b"', "defines the rule 'root' twice"),
        ('root ::= x\nx ::= "a"\nx ::= "b"', "defines the rule 'x' twice"),
        ('root ::= "a" x', "uses the rule 'x' without defining it"),
        ('x ::= "a"', "has no rule root"),
        ("hello", "line 1: 'hello' is no GBNF"),
        ('root ::= "a"\n\nx ::= "b', "line 3: '\"b' is no GBNF"),
        ("root ::= [a", "is no GBNF"),
        ("root ::= []", "no characters"),
        ('root ::= "\\q"', "escape that names no character"),
        ('root ::= "\\ud800"', "escape that names no character"),
        ('root ::= "\\x4"', "escape that names no character"),
        ("root ::= * | [a]", "has a * that repeats nothing"),
        ('root ::= "a"**', "has a * that repeats nothing"),
        ('root ::= ("a"', "parenthesis without its other one"),
        ('root ::= "a")(', "parenthesis without its other one"),
        ("root ::= " + "(" * 500 + '"a"' + ")" * 500, "nested too deeply"),
    ],
)
def test_what_is_no_gbnf_is_refused_with_its_place_and_its_remedy(grammar: str, told: str) -> None:
    with pytest.raises(GrammarError) as caught:
        context_free_grammar(grammar)
    assert told in str(caught.value)
    assert "; " in str(caught.value)
