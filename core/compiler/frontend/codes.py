"""The codes of the errors about a user's function, and what each of them is about."""

from __future__ import annotations

from types import MappingProxyType

CODES = MappingProxyType(
    {
        "DL101": "the source of a function cannot be found",
        "DL102": "a statement or expression that the language does not have",
        "DL103": "a name without a value",
        "DL104": "an attribute that is not there",
        "DL105": "arguments that do not fit a function",
        "DL106": "a function that the compiler does not know",
        "DL107": "a value that must be known when the program is compiled",
        "DL108": "branches that disagree",
        "DL109": "a loop that changes the type of what it carries",
        "DL110": "a loop or recursion that does not end when it is unrolled",
        "DL111": "a change to an object",
        "DL112": "an assertion that fails or an error that is raised",
        "DL113": "Python's own error in a computation on known values",
        "DL114": "an index that does not fit",
        "DL115": "shapes that do not fit",
        "DL116": "element types that do not fit",
        "DL117": "something that cannot be differentiated",
        "DL118": "an argument or result that is not a tree of arrays",
        "DL119": "values that do not fit an operation",
        "DL120": "a type rule of the IR",
        "DL121": "a fault of the compiler",
        "DL122": "a program that is unrolled too far",
        "DL123": "a part of another framework's model that cannot be imported",
    }
)
