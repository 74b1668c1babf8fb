"""Programs whose objects cannot be as in Python, and the code of the refusal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import delian as dl

from support.frontend_programs.object_programs import Node, Slotted, Tank

OUTSIDE = Tank()


class Slots:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a


class OwnNew:
    def __new__(cls, *args):
        return object.__new__(cls)


class OwnGet:
    def __getattr__(self, name):
        return self.a * 2


class OwnAccess:
    def __getattribute__(self, name):
        return 7.0


class OwnEnd:
    def __del__(self):
        OUTSIDE.level += 1


def given(self, a):
    return a


class Returns:
    __init__ = given


@dataclass
class Doubles:
    a: float

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value * 2)


class OwnSet:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value * 2)


class Abstract(ABC):
    @abstractmethod
    def f(self): ...


@dl.module
class Frozen:
    w: float


def an_object_from_outside(v):
    OUTSIDE.level = v[0]
    return v


def a_method_of_an_object_from_outside(v):
    return OUTSIDE.pour(v[0]).level


def one_of_two_objects_is_changed(v):
    a, b = Tank(), Tank()
    p = a if v[0] > 0 else b
    p.level = 7.0
    return a.level, b.level


def an_attribute_on_one_path(v):
    t = Tank()
    if v[0] > 0:
        t.extra = v[0]
    return t.level


def text_that_differs(v):
    t = Tank()
    t.mode = "a"
    if v[0] > 0:
        t.mode = "b"
    return t.mode == "b"


def an_object_that_holds_itself_is_a_result(v):
    a = Node(v[0])
    a.left = a
    return a


def a_method_that_gives_one_of_two(v):
    t, u = Tank(), Tank()
    pour = t.pour if v[0] > 1.5 else u.pour
    pour(v[1])
    return t.level


def an_object_is_the_key_of_a_dict(v):
    t = Tank()
    held = {t: 1.0}
    t.level = v[0]
    return held[t] * t.level


def a_derivative_changes_it(v):
    t = Tank()

    def loss(x):
        t.level = x
        return x * x

    return dl.grad(loss)(v[0])


def slots(v):
    s = Slots(v[0])
    s.a = 2 * v[1]
    return s.a


def a_class_with_new(v):
    return OwnNew(v[0])


def a_class_with_setattr(v):
    made = OwnSet()
    made.a = v[0]
    return made.a


def a_class_with_getattr(v):
    made = OwnGet()
    made.a = v[0]
    return made.b


def a_class_with_getattribute(v):
    made = OwnAccess()
    made.a = v[0]
    return made.a


def a_class_with_del(v):
    OwnEnd()
    return v


def an_init_that_returns(v):
    return Returns(v[0])


def a_dataclass_with_setattr(v):
    return Doubles(v[0]).a


def a_slot_of_a_dataclass(v):
    s = Slotted(v[0])
    s.a = v[1]
    return s.a


def an_abstract_class(v):
    return Abstract()


def a_frozen_dataclass(v):
    f = Frozen(v[0])
    f.w = v[1]
    return f.w


def its_dict(v):
    t = Tank()
    t.__dict__["level"] = v[0]
    return t.level


def whether_it_is_one_of_two(v):
    a, b = Tank(), Tank()
    p = a if v[0] > 0 else b
    return p is a


def whether_a_list_is_one_of_two(v):
    a, b = [1.0], [2.0]
    p = a if v[0] > 0 else b
    return p is a, p is b


def whether_a_loop_left_it(v):
    a = [v[0]]
    p = a
    for k in range(3):
        if v[0] > k:
            p = [v[0] + k]
    return p is a


def whether_one_of_two_is_in_a_list(v):
    a, b = Tank(), Tank()
    p = a if v[0] > 0 else b
    return p in [a]


REFUSED = {
    an_object_from_outside: "DL111",
    a_method_of_an_object_from_outside: "DL111",
    one_of_two_objects_is_changed: "DL111",
    an_attribute_on_one_path: "DL108",
    text_that_differs: "DL108",
    an_object_that_holds_itself_is_a_result: "DL110",
    an_object_is_the_key_of_a_dict: "DL107",
    a_method_that_gives_one_of_two: "DL111",
    a_derivative_changes_it: "DL111",
    slots: "DL106",
    a_class_with_new: "DL106",
    a_class_with_setattr: "DL106",
    a_class_with_getattr: "DL106",
    a_class_with_getattribute: "DL106",
    a_class_with_del: "DL106",
    an_init_that_returns: "DL105",
    a_dataclass_with_setattr: "DL106",
    a_slot_of_a_dataclass: "DL111",
    an_abstract_class: "DL105",
    a_frozen_dataclass: "DL111",
    its_dict: "DL111",
    whether_it_is_one_of_two: "DL111",
    whether_a_list_is_one_of_two: "DL111",
    whether_a_loop_left_it: "DL111",
    whether_one_of_two_is_in_a_list: "DL111",
}
