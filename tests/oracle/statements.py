"""Statements without a block: names bound, arrays, lists and dicts changed, errors raised."""

from __future__ import annotations

import numpy as np

from .samples import is_array, is_number
from .writer import Skip, Writer, construct, table

# -- names

table(
    "statement",
    r"""
    assign a number 5: <N> = <n>
    assign an array 6: <N> = <a>
    assign items 3: <N> = <l> ;; <N> = <u>
    assign anything 2: <N> = <e> ;; <N> = <d>
    alias 2: <N> = <A> ;; <N> = <L> ;; <N> = <D>
    named view 3: <N> = <V>[<g>] ;; <N> = <M>[<k>] ;; <N> = <M>.T ;; <N> = <M>[:, 0]
    named view 3: <N> = <A>[...]
    named view 1: <N> = <M>.ravel() ;; <N> = <V>.reshape(-1, 1) ;; <N> = <A>[None]
    named view 1: <N> = <M>[<g>, 1:]
    chained assignment 0.7: <N> = <N> = <e> ;; <N> = <N> = <a>
    unpacking 2: <N>, <N> = <n>, <e> ;; <N>, *<N> = <u> ;; *<N>, <N> = <u>
    unpacking 2: <N>, (<N>, <N>) = <n>, (<n>, <a>)
    unpacking an array 1: <N>, *<N> = <v> ;; <N>, <N> = <m>[:, :2].T ;; [<N>, <N>] = [<n>, <a>]
    """,
)


@construct("statement", "assign again", 7)
def again(w: Writer) -> list[str]:
    name = w.fill("<R>")
    return [f"{name} = {w.like(w.env.get(name))}"]


@construct("statement", "swap", 1)
def swap(w: Writer) -> list[str]:
    first = w.fill("<R>")
    second = w.fill("<R>")
    return [f"{first}, {second} = {second}, {w.like(w.env.get(first))}"]


table(
    "statement",
    r"""
    assign another type ! 0.15: <R> = <e> ;; <R> = <n>
    change a number 4: <S> += <n> ;; <S> -= <n> ;; <S> *= <n> ;; <S> += 1
    change a number 1: <S> //= 2 ;; <S> %= 3 ;; <S> /= 2 ;; <S> **= 2 ;; <S> |= 1 ;; <S> ^= <p>
    """,
)

# -- arrays in place

table(
    "statement",
    r"""
    item assignment 6: <V>[<k>] = <n> ;; <M>[<k>, <i>] = <n> ;; <V>[<k>] = <n>
    item assignment 6: <M>[<k>][0] = <n>
    item change 5: <V>[<k>] += <n> ;; <M>[<k>, 0] *= <n> ;; <V>[<k>] -= <n> ;; <V>[<k>] //= 2
    item change 5: <M>[0][<i>] += <n>
    slice assignment 4: <V>[<g>] = <n> ;; <M>[<g>] = <n> ;; <M>[:, <g>] = <n>
    slice assignment 4: <V1>[<g>] = <V1>[<g>] ;; <M1>[<k>] = <M1>[<k>] ;; <A>[...] = <s>
    slice change 4: <V>[<g>] += <n> ;; <M>[<k>] -= <n> ;; <V1>[1:] += <V1>[:-1]
    slice change 4: <M>[:, 0] *= <n> ;; <M>[<g>, 1:] += 1
    array change 5: <A> += <s> ;; <A> -= <s> ;; <A> *= <s> ;; <F> /= 2 ;; <F> /= <s> ;; <A> //= 2
    array change 5: <A> **= 2
    array change of another type 1: <A> += <e> ;; <A> -= <a> ;; <A> *= <n> ;; <A> &= <h>
    array change of another type 1: <A> /= <n> ;; <M> @= <s>
    mask assignment 3: <A1>[<A1> > <n>] = <n> ;; <A1>[<A1> < 0] += <n> ;; <A>[<h>] = <n>
    mask assignment 3: <A1>[<A1> == 0] *= 2
    fancy assignment 2: <V>[[0, -1, 0]] = <n> ;; <V>[[0, 0]] += <n> ;; <M>[[0, 1], [1, 0]] = <n>
    fancy assignment 2: <V>[[0, 1, 0]] = <v>[:3]
    out 2: np.add(<A>, <s>, out=<A>) ;; np.multiply(<A1>, 2, <A1>)
    out 2: np.maximum(<A1>, <s>, out=<A1>) ;; np.negative(<A1>, out=<A1>)
    out 2: <N> = np.add(<A1>, <n>, out=<A1>)
    out at places 1: np.add(<A1>, <n>, out=<A1>, where=<A1> > 0) ;; np.sin(<A1>, <A1>, where=<c>)
    out at places 1: np.multiply(<A1>, <s>, out=<A1>, where=<A1> == <n>)
    ufunc at 1: np.add.at(<V>, [0, 1, 1], <n>) ;; np.subtract.at(<V>, np.array([0, 0]), <n>)
    ufunc at 1: np.maximum.at(<V>, [0], <n>)
    functions that change 2: np.copyto(<A>, <s>) ;; np.fill_diagonal(<M>, <n>) ;; <A>.fill(<n>)
    functions that change 2: <V>.sort() ;; <M>.sort(<x>) ;; <V>[<g>].sort() ;; <V>[<g>].fill(<n>)
    functions that change ! 1: np.put(<V>, [0], <n>) ;; <V>.partition(1)
    functions that change ! 1: np.place(<V>, <h>, [1]) ;; <V>.resize(2) ;; <A>.shape = (-1,)
    change through a temporary view 1.5: <A>.T[...] += <n> ;; <M>.T[0] = <n>
    change through a temporary view 1.5: <A>[::-1][...] = <n> ;; <M>.reshape(-1)[<i>] = <n>
    change through a temporary view 1.5: <M>[1:][0] += <n>
    swapped rows 1: <M1>[[0, 1]] = <M1>[[1, 0]] ;; <V1>[0], <V1>[1] = <V1>[1], <V1>[0]
    swapped rows 1: <M1>[0], <M1>[1] = <M1>[1].copy(), <M1>[0].copy() ;; <V1>[:] = <V1>[::-1]
    """,
)

# -- lists and dicts

table(
    "statement",
    r"""
    list change 5: <L>.append(<e>) ;; <L>.append(<n>) ;; <L>[0] = <e> ;; <L>[-1] = <n>
    list change 5: <L> += [<n>] ;; <L>.extend(<u>) ;; <L>.insert(0, <e>)
    list change 2: <N> = <L>.pop() ;; <L>.reverse() ;; <L>[1:] = [<n>] ;; <L>.pop(0)
    list change 2: <L>[0] += <n> ;; <L> *= 2 ;; <L>[:1] = [] ;; <L>.clear() ;; <N> = <L>.copy()
    list change ! 1: <L>.sort() ;; <L>.remove(<n>) ;; del <L>[0] ;; <L>.sort(key=lambda a: -a)
    dict change 3: <D>[<q>] = <e> ;; <D>['a'] = <n> ;; <D>.update(b=<n>)
    dict change 3: <D>.setdefault(<q>, <e>) ;; <D>.update({'c': <e>})
    dict change 1: <N> = <D>.pop('a') ;; <N> = <D>.get(<q>, <e>) ;; <D>['a'] += <n>
    dict change 1: <D> |= {'b': <n>} ;; <N> = <D>.copy() ;; <N> = <D>.pop('z', <n>)
    dict views 1: <N> = list(<D>) ;; <N> = list(<D>.values()) ;; <N> = [b for _, b in <D>.items()]
    dict views 1: <N> = len(<D>)
    del ! 0.2: del <D>['a'] ;; del <R>
    iterator 1: <N> = sum(map(abs, <u>)) ;; <N> = list(zip(<l>, <u>))[0]
    """,
)


@construct("statement", "iterator that is gone through", 1)
def iterator(w: Writer) -> list[str]:
    name = w.new("it")
    source = w.rng.choice(("zip(<u>, <u>)", "map(lambda a: a + <n>, <u>)", "enumerate(<l>)"))
    lines = [f"{name} = {w.fill(source)}", f"{w.fill('<N>')} = list({name})"]
    if w.daring and w.rng.random() < 0.4:
        lines.append(f"{w.fill('<N>')} = list({name})")
    elif w.daring and w.rng.random() < 0.3:
        lines[1:] = [f"{w.fill('<N>')} = next({name})"]
    return lines


# -- errors, text and what is only said

table(
    "statement",
    r"""
    assert ! 0.7: assert <c> ;; assert <c>, 'words' ;; assert <a>.ndim < 4
    assert ! 0.7: assert len(<l>) > 0, f'{len(<l>)} items'
    print ! 0.7: print(<n>) ;; print('here', <e>)
    text of what is known 0.5: <N> = {f'{len(<l>)}': <n>} ;; <N> = {f'k{<i>}': <e>}
    text of what is known 0.5: <N> = {'x'.join(['a', 'b']): <n>}
    """,
)


@construct("statement", "change of what is outside", 1, rare=True)
def outside(w: Writer) -> list[str]:
    found = [n for n in w.outside if is_array(w.env.get(n)) and np.ndim(w.env[n])]
    if not found:
        raise Skip
    return [f"{w.rng.choice(found)}[0] = {w.fill('<n>')}"]


@construct("statement", "nonlocal", 1.5)
def nonlocal_(w: Writer) -> list[str]:
    """A closure that sets a name of the function around it."""
    found = [n for n in w.frame.names if is_number(w.env.get(n))]
    if not found or w.nested:
        raise Skip
    name, made = w.rng.choice(found), w.new("g")
    change = w.rng.choice((f"{name} = {w.like(w.env[name])}", f"{name} += 1", f"{name} = b"))
    lines = [f"def {made}(b={w.like(w.env[name])}):", f"    nonlocal {name}", f"    {change}"]
    if w.rng.random() < 0.3:
        lines[2:] = [f"    if {w.fill('<c>')}:", f"        {change}"]
    calls = [f"{made}()", f"{w.fill('<N>')} = {made}()", f"{w.fill('<N>')} = [{made}(), {name}]"]
    return [*lines, f"    return {name}", *calls[: w.rng.randrange(1, 4)]]


table(
    "statement",
    r"""
    print 0.4: print('at', <i>) ;; print(<n>) ;; print(<u>, <c>) ;; print(<d>, sep='-')
    """,
)
