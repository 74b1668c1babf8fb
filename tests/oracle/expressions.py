"""Expressions of numbers and arrays."""

from __future__ import annotations

from .writer import Writer, construct, table

# -- numbers

table(
    "number",
    r"""
    arithmetic 8: <n> + <n> ;; <n> - <n> ;; <n> * <n> ;; (<n> + <n>) * <n>
    division 3: <n> / <n> ;; <n> // <n> ;; <n> % <n> ;; divmod(<n>, <n>)[1]
    power 1.5: <n> ** 2 ;; <n> ** <i> ;; <n> ** 0.5 ;; abs(<n>) ** 0.5 ;; 2 ** (<n> % 5)
    bits 1.5: <p> & <p> ;; <p> | <p> ;; <p> ^ <p> ;; ~<p> ;; <p> << 2 ;; <n> >> 1
    sign 2: -<n> ;; +<n> ;; abs(<n>) ;; -(<n> - <n>)
    conversion 3: float(<n>) ;; int(<n>) ;; bool(<n>) ;; round(<n>) ;; round(<n>, 1)
    numpy conversion 2: <t>(<n>) ;; np.float32(<n>) ;; np.asarray(<n>) ;; <n>.item()
    comparison 2: <n> < <n> ;; <n> == <n> ;; <n> != <n> ;; <n> >= <n>
    not 1: (not <n>)
    choice 1: np.where(<c>, <n>, <n>)
    choice of classes ! 1: (<n> if <c> else <n>) ;; (<n> and <n>) ;; (<n> or <n>)
    choice of classes ! 1: max(<n>, <n>, <n>)
    """,
)


@construct("number", "choice", 4)
def choice(w: Writer) -> str:
    """Of two numbers of one class: a program gives a name one type, whatever path is taken."""
    first = w.fill("<n>")
    second = w.like(w.value(first))
    forms = ("({0} if {2} else {1})", "max({0}, {1})", "min({0}, {1})", "(({0}) and ({1}))")
    form = w.rng.choice((*forms, "(({0}) or ({1}))"))
    return form.format(first, second, w.fill("<c>") if "{2}" in form else "")


table(
    "number",
    r"""
    extremes 1: max(<n1>, <n1>) ;; min(<v>) ;; max(<v>) ;; min(<u>)
    numpy on numbers 3: np.maximum(<n>, <n>) ;; np.add(<n>, <n>) ;; np.sqrt(<n>)
    numpy on numbers 2: np.abs(<n>) ;; np.floor(<n>) ;; np.sign(<n>) ;; np.exp(-abs(<n>))
    numpy on numbers 1: np.clip(<n>, -1, 1) ;; np.minimum(<n>, 0.5) ;; np.isnan(<n>)
    math ! 1: math.sqrt(abs(<n>)) ;; math.floor(<n>) ;; math.isnan(<n>) ;; math.pi * <n>
    math ! 1: math.sin(<n>) ;; math.hypot(<n>, <n>) ;; math.copysign(1.0, <n>)
    element 5: <v>[<k>] ;; <m>[<k>, 0] ;; <m>[<k>][-1] ;; <v>[<g>][0] ;; <v>[<p>]
    reduction 5: <a>.sum() ;; <a>.mean() ;; <v>.max() ;; <v>.min() ;; np.prod(<v>)
    reduction 3: np.argmax(<v>) ;; <v>.argmin() ;; np.any(<a>) ;; <a>.all() ;; <v>.std()
    reduction 2: np.median(<v>) ;; np.ptp(<v>) ;; np.linalg.norm(<v>) ;; <v>.var(ddof=1)
    product 2: <v1> @ <v1> ;; np.dot(<v1>, <v1>) ;; np.vdot(<v1>, <v1>) ;; np.trace(<m>)
    size 2: len(<a>) ;; <a>.ndim ;; <a>.size ;; <a>.shape[0] ;; len(<l>) ;; <a>.nbytes
    sum 2: sum(<u>) ;; sum(<v>) ;; sum([<n>, <n>]) ;; sum(<u>, <n>) ;; sum(v > 0 for v in <v>)
    rank 0 1: np.array(<n>) ;; <a>.sum(keepdims=True).reshape(()) ;; np.zeros(()) + <n>
    walrus 0.5: ((y0 := <n>) + y0) ;; ((y0 := <n>) * 2 - y0)
    count 1: <u>.count(<n>) ;; [<n1>, <n>, <n1>].count(<n1>) ;; np.count_nonzero(<a>)
    text ! 1: len(str(<n>)) ;; len(f'{<n>}') ;; float(str(<n>)) ;; len(repr(<n>))
    sets ! 1: len({<n>, <n>}) ;; len(set(<u>)) ;; len({<n1>, <n1>})
    place in a list ! 1: <u>.index(<n>) ;; [<n1>, <n>].index(<n1>)
    lambda 1: (lambda a: a + <n>)(<n>) ;; (lambda a, b=<n>: a * b)(<n>)
    comprehension 1.5: sum([b * <n> for b in <u>]) ;; max([b + 1 for b in <u>])
    reduction with a condition 0.4: sum(b for b in <u> if b > <n>) ;; len([b for b in <u> if b > 0])
    reduction with a condition 0.4: max((b * 2 for b in <v> if b < <n>), default=<n>)
    reduction with a condition 0.3: any(b > <n> for b in <v> if b) + 0 ;; sum(1 for b in <v> if b)
    reduction with a condition 0.3: sum([b for b in <u> if b > <n>])
    reduction with a condition 0.3: sum(a * b for a in <u> for b in <v> if a < b)
    containers of collections 0.2: sum(collections.deque(<u>, 2))
    containers of collections 0.2: [*collections.OrderedDict(b=<n>, a=<n>).values()][0]
    generator 1.5: sum(b * 2 for b in <v>) ;; any(b > <n> for b in <u>) + 0 ;; max(b for b in <u>)
    item 3: <u>[0] ;; <u>[-1] ;; <l>[-1] ;; <d>['a'] ;; <d>.get('b', <n>)
    functools 0.7: functools.reduce(lambda a, b: a + b, <u>) ;; operator.add(<n>, <n>)
    """,
)

# -- conditions

table(
    "condition",
    r"""
    comparison 6: <n> < <n> ;; <n> > <n> ;; <n> <= <n> ;; <n> == <n> ;; <n> != <n>
    chained comparison 1: <n> < <n> <= <n> ;; 0 <= <n> < <n> ;; <n> == <n> != <n>
    and or not 2: <c> and <c> ;; <c> or <c> ;; not <c> ;; not (<c> and <c>)
    truth of a number 1: <n> ;; bool(<n>) ;; not <n>
    any all 2: (<a> > 0).any() ;; np.all(<a> < <n>) ;; any([<c>, <c>]) ;; all(<u>)
    membership 1: <n> in <u> ;; <n> not in [<n>, 1] ;; <n> in (<n>, <n>) ;; 'a' in <d>
    membership of arrays ! 0.3: <n> in <v> ;; np.array_equal(<a1>, <a1>) ;; np.allclose(<a>, <s>)
    equality of containers 0.7: (<n1>, <n>) == (<n1>, <n>) ;; [<n>, 1] == [<n>, 1] ;; <u> == <u>
    isinstance 1.5: isinstance(<e>, float) ;; isinstance(<e>, (int, np.integer))
    isinstance 1.5: isinstance(<e>, np.ndarray) ;; isinstance(<n>, bool)
    isinstance 1.5: isinstance(<n>, np.floating)
    type 1: type(<n>) is float ;; type(<n>) is int ;; type(<e>) == np.ndarray ;; type(<n>) is bool
    attributes 0.7: hasattr(<e>, 'dtype') ;; hasattr(<n>, 'shape') ;; np.isscalar(<e>)
    attributes 0.7: callable(<n>)
    is 0.7: <n> is None ;; (<c>) is True ;; <e> is not None ;; (<n> > 0) is False
    shape test 1: <a>.shape == (3,) ;; <a>.ndim == 1 ;; <a>.dtype == np.float64 ;; len(<a>) > 2
    text of a number ! 0.1: str(<n>) == '1.0' ;; f'{<n>}' > '2' ;; repr(<n>) == 'True'
    """,
)

# -- arrays


@construct("array", "array literal", 2)
def literal(w: Writer) -> str:
    from . import samples

    dtype = samples.draw_dtype(w.rng)
    return samples.array_text(w.rng, dtype, samples.draw_shape(w.rng), 0.02)


table(
    "array",
    r"""
    array of numbers 2: np.array([<n>, <n>]) ;; np.array([<n>, <n>, <n>], <t>)
    array of numbers 2: np.array([[<n>], [<n>]])
    array of arrays 1.5: np.array([<v1>, <v1>]) ;; np.stack([<a1>, <a1>])
    array of arrays 1.5: np.concatenate([<v>, <v>])
    array of arrays 1: np.vstack([<v1>, <v1>]) ;; np.hstack([<v>, <v>])
    array of arrays 1: np.stack([<a1>, <a1>], -1)
    made arrays 2: np.zeros(3) ;; np.ones((2, 3), <t>) ;; np.full(3, <n>) ;; np.arange(4)
    made arrays 2: np.arange(3.0)
    made arrays 1: np.eye(3) ;; np.linspace(0, 1, 5) ;; np.zeros_like(<a>)
    made arrays 1: np.full_like(<a>, <n>) ;; np.empty((0, 3))
    elementwise 10: <a> + <s> ;; <a> - <s> ;; <a> * <s> ;; <n> * <a> ;; -<a> ;; <a1> * <a1>
    elementwise 10: <n> - <a>
    elementwise division 3: <a> / <s> ;; <a> // <s> ;; <a> % <s> ;; <n> / <a> ;; <n> // <a>
    elementwise power 1: <a> ** 2 ;; <a> ** <n> ;; np.sqrt(<a>) ;; <a> ** 0.5 ;; np.square(<a>)
    elementwise comparison 3: <a> > <s> ;; <a> == <s> ;; <a> <= <n> ;; <n> < <a> ;; <a> != <s>
    elementwise logic 1.5: ~(<a> > 0) ;; (<a> > <n>) & (<a> < <n>) ;; (<a> > 0) | <h>
    elementwise logic 1.5: np.logical_not(<a>)
    ufunc 4: np.abs(<a>) ;; np.maximum(<a>, <s>) ;; np.minimum(<a>, <n>) ;; np.sign(<a>)
    ufunc 4: np.floor(<a>)
    ufunc 2: np.exp(-np.abs(<a>)) ;; np.tanh(<a>) ;; np.sin(<a>) ;; np.isnan(<a>)
    ufunc 2: np.negative(<a>) ;; np.log1p(np.abs(<a>))
    where 3: np.where(<a> > <n>, <a>, <s>) ;; np.where(<a> > 0, <s>, <s>)
    where 3: np.where(<c>, <a>, <s>)
    clip 1.5: np.clip(<a>, -1, 1) ;; <a>.clip(0) ;; np.clip(<a>, <n>, <n>)
    slice 6: <v>[<g>] ;; <m>[<g>] ;; <m>[:, <g>] ;; <m>[<g>, 1:] ;; <a>[...] ;; <m>[<k>]
    slice 6: <m>[:, 0] ;; <v>[:, None]
    fancy index 2: <v>[[0, -1, 0]] ;; <m>[[1, 0]] ;; <m>[[0, 1], [1, 0]] ;; <v>[np.array([1, 0])]
    fancy index 2: <m>[:, [0, 0]]
    row of a running index 1: <m>[<p>] ;; <m>[:, <p>] ;; np.take(<v>, [0, 1])
    row of a running index 1: <v>[<v>.argsort()]
    mask index ! 0.2: <a>[<a> > 0] ;; <v>[<h>] ;; np.nonzero(<v>)[0] ;; np.unique(<v>)
    view 4: <a>.T ;; <a>.reshape(-1) ;; <a>.ravel() ;; <a>[None] ;; <a>[::-1] ;; np.squeeze(<a>)
    view 4: <m>.T[<g>]
    view 1: np.expand_dims(<a>, <i>) ;; np.swapaxes(<m>, 0, 1) ;; <m>.reshape(<m>.size)
    view 1: np.atleast_1d(<e>) ;; <a>.flatten()
    view by strides 0.5: np.lib.stride_tricks.sliding_window_view(<v>, 2)
    view by strides 0.5: np.lib.stride_tricks.as_strided(<V1>, (2, len(<V1>) // 2), <V1>.strides*2)
    view by strides 0.5: np.lib.stride_tricks.sliding_window_view(<m>, (2, 2))
    copy 3: <a>.copy() ;; np.array(<a>) ;; <a>.astype(<t>) ;; np.asarray(<a>) ;; np.asarray(<l>)
    copy 3: +<a>
    reduction over an axis 4: <m>.sum(<x>) ;; np.mean(<m>, <x>) ;; <a>.sum(<x>, keepdims=True)
    reduction over an axis 4: <m>.max(<x>)
    reduction over an axis 2: np.argmax(<m>, <x>) ;; np.any(<m> > 0, <x>) ;; <m>.min(axis=<x>)
    reduction over an axis 2: np.prod(<m>, <x>) ;; <m>.var(0)
    reduction to a type 1: <a>.sum(<x>, <t>) ;; np.mean(<m>, <x>, <t>)
    reduction to a type 1: <m>.sum(dtype=<t>, axis=<x>)
    scan 2: np.cumsum(<v>) ;; np.cumsum(<m>, <x>) ;; np.cumprod(<v>) ;; np.diff(<v>)
    scan 2: <m>.cumsum(<x>)
    sorting 2: np.sort(<v>) ;; np.sort(<m>, <x>) ;; np.argsort(<v>, kind='stable')
    sorting 2: np.sort(<v>)[::-1]
    product of arrays 3: <m1> @ <m1>.T ;; <m> @ <s> ;; np.outer(<v>, <v>) ;; np.dot(<m>, <s>)
    product of arrays 3: np.einsum('ij->ji', <m>)
    moves 2: np.roll(<v>, <i>) ;; np.flip(<a>, <x>) ;; np.tile(<v>, 2) ;; np.repeat(<v>, 2)
    moves 2: np.pad(<v>, 1) ;; np.rot90(<m>)
    moves 1: np.broadcast_to(<v>, (2, len(<v>))) ;; np.triu(<m>) ;; np.diag(<v>) ;; np.diag(<m>)
    moves 1: np.roll(<m>, 1, <x>)
    rounding 1: np.round(<a>, 1) ;; np.rint(<a>) ;; <a>.round() ;; np.trunc(<a>)
    rounding 1: <a>.astype(int)
    array of a comprehension 2: np.array([b * <n> for b in <v>])
    array of a comprehension 2: np.array([r.sum() for r in <m>]) ;; np.stack([r * 2 for r in <m>])
    item that is an array 2: <l>[0] ;; <l>[-1] ;; <d>['a'] ;; <d>['b']
    choice of arrays 1.5: (<a1> if <c> else <a1> * 2) ;; (<a1> + 1 if <c> else <a1>)
    lambda 0.7: (lambda a: a * <n>)(<a>) ;; (lambda a, b: a + b.sum())(<a>, <a>)
    """,
)

# -- lists and tuples, and what is none of these

table(
    "items",
    r"""
    list 4: [<n>, <n>] ;; [<n>, <n>, <n>] ;; [<e>, <e>] ;; [<a>, <n>] ;; []
    tuple 2: (<n>, <n>) ;; (<e>, <e>) ;; (<n>,) ;; <n>, <e>
    nested items 1: [[<n>, <n>], [<n>]] ;; [(<n>, <a>)] ;; ([<n>], <e>) ;; [{'a': <e>}]
    list comprehension 3: [b + <n> for b in <u>] ;; [<n> for _ in range(3)]
    list comprehension 3: [b * b for b in <v>] ;; [r for r in <m>]
    list comprehension 1.5: [b for b in range(4) if b % 2] ;; [a * b for a in <u> for b in (1, 2)]
    list comprehension 1.5: [(b, a) for a, b in enumerate(<u>)]
    list of an iterator 2: list(<v>) ;; list(<u>) ;; list(zip(<u>, <u>)) ;; list(map(abs, <u>))
    list of an iterator 2: list(enumerate(<u>))
    list of an iterator 1: list(reversed(<u>)) ;; list(range(3)) ;; tuple(<u>)
    list of an iterator 1: list(<d>.values()) ;; [*<u>, <n>]
    slices of lists 2: <u>[1:] ;; <u>[::-1] ;; <u> + <u> ;; <u> * 2 ;; <u>[:-1]
    slices of lists 2: list(<u>) + [<n>]
    filter ! 0.2: list(filter(None, <u>)) ;; [b for b in <u> if b > 0] ;; sorted(<u>)
    tolist ! 0.7: <v>.tolist() ;; <m>.tolist() ;; list(<m>) ;; list(<a>.shape)
    divmod 0.5: divmod(<n>, <n>) ;; np.divmod(<a>, <s>)
    """,
)

table(
    "any",
    r"""
    dict 4: {'a': <e>, 'b': <e>} ;; {'a': <n>} ;; {0: <e>, (1, 'b'): <n>} ;; dict(a=<e>, b=<e>)
    dict 4: {**<d>, 'c': <e>}
    dict comprehension 1.5: {b: <n> for b in ('a', 'b')} ;; {b: b * <n> for b in range(2)}
    dict comprehension 1.5: dict(zip(('a', 'b'), (<e>, <e>)))
    items 4: <l> ;; <u> ;; [<l>, <l>]
    none ! 0.3: None
    """,
)
