"""NumPy's functions and operators on every element type, with numbers of every class.

Each expression is run by NumPy and compiled; what the compiler accepts gives the same value, of the
same type and class, or the same error.
"""

from __future__ import annotations

import copy
import linecache
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

TYPES = (np.int8, np.uint8, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64)
VECTORS = (*(np.array([1, 2], t) for t in TYPES), np.array([True, False]))
MATRICES = (
    *(np.array([[1, 2], [3, 0]], t) for t in TYPES),
    np.array([[True, False], [True, True]]),
    np.array([[1.5, -2.25], [np.nan, np.inf]]),
    np.array([[-1, -128], [127, 3]], np.int8),
    np.array([[1.5, -0.0], [2.5, -3.5]], np.float32),
)
NUMBERS = (
    300,
    -1,
    2,
    1.5,
    True,
    np.int64(3),
    np.float64(1.5),
    np.float32(1.5),
    np.uint8(200),
    np.int8(-3),
    np.array(3),
    np.array([1.5, 2]),
    np.array([3, 1], np.int8),
    np.bool_(True),
    np.uint64(5),
)
#: Of a vector `x` and a number `v`.
OF_BOTH = """
x+v ;; x-v ;; v-x ;; x*v ;; x/v ;; v/x ;; x//v ;; v//x ;; x%v ;; v%x ;; x**v ;; x&v ;; x|v
;; x^v ;; x<<v ;; x>>v ;; x<v ;; x==v ;; x!=v ;; x>=v ;; np.minimum(x,v) ;; np.maximum(v,x)
;; np.power(x,v) ;; np.arctan2(x,v) ;; np.hypot(x,v) ;; np.copysign(x,v) ;; np.fmod(x,v)
;; np.floor_divide(x,v) ;; np.clip(x,v,v) ;; np.clip(x,0,v) ;; np.where(x>0,x,v)
;; np.where(x>0,v,x) ;; np.full_like(x,v) ;; np.isclose(x,v) ;; np.dot(x,v)
;; np.multiply.outer(x,v) ;; np.append(x,v) ;; np.sum(x)+v ;; np.mean(x)*v ;; x[0]+v ;; x[0]//v
;; x[0]**v ;; x.astype(np.int16)+v ;; np.add(x,v,dtype=np.float32) ;; np.heaviside(x,v)
;; np.ldexp(x,v) ;; np.gcd(x,v) ;; np.left_shift(x,v) ;; np.divmod(x,v) ;; divmod(x[0],v)
;; np.logaddexp(x,v) ;; np.nextafter(x,v) ;; np.interp(v,x,x) ;; np.searchsorted(x,v)
;; np.isin(x,v) ;; np.take(x,v) ;; np.repeat(x,v) ;; np.roll(x,v) ;; x.clip(v) ;; np.round(x,v)
;; np.linspace(x[0],v,3) ;; np.arange(v) ;; np.vander(x,3)+v ;; np.convolve(x,np.atleast_1d(v))
;; np.cumsum(x)*v ;; np.diff(x)*v ;; np.prod(x)-v ;; abs(x)-v ;; -x+v ;; ~x ;; sum(x)+v
;; x@np.array([v,v]) ;; np.var(x)+v ;; int(x[0])+v ;; float(x[1])*v ;; bool(x[0])+v ;; x.max()-v
;; round(float(x[0]),1) ;; x.argmax()+v ;; x.sum(dtype=np.int8)+v ;; np.average(x)*v
;; np.median(x)*v ;; np.percentile(x,50)*v ;; np.bincount(x) ;; np.digitize(x,np.array([0,2]))
;; np.trunc(x) ;; np.sqrt(x) ;; np.exp(x) ;; np.sign(x) ;; np.rint(x) ;; np.square(x)
;; np.cbrt(x) ;; np.reciprocal(x) ;; np.nan_to_num(x) ;; np.spacing(x) ;; np.signbit(x)
;; np.angle(x) ;; np.ptp(x) ;; np.cov(x) ;; np.corrcoef(x,x) ;; np.trapezoid(x) ;; np.gradient(x)
;; np.histogram(x,3)[0] ;; np.unique(x) ;; np.flip(x)+v ;; np.outer(x,v) ;; np.inner(x,x)+v
;; np.kron(x,v) ;; np.tile(x,2)*v ;; np.select([x>0],[v],x) ;; np.piecewise(x,[x>0],[v,0])
;; np.choose(x>0,[x,v]) ;; np.polyval([v,1],x) ;; np.ediff1d(x)
;; np.cross(np.append(x,1),np.append(x,2))
"""
#: Statements that change `x`.
IN_PLACE = """
x+=v ;; x-=v ;; x*=v ;; x/=v ;; x//=v ;; x%=v ;; x**=v ;; x&=v ;; x|=v ;; x<<=v ;; x[0]+=v
;; x[:1]*=v ;; x[x>0]-=v ;; np.add.at(x,[0],v) ;; np.copyto(x,v)
;; np.copyto(x,v,casting='unsafe') ;; np.add(x,v,out=x)
;; np.multiply(x,v,out=x,casting='unsafe') ;; np.clip(x,v,v,out=x) ;; x.clip(0,v,out=x)
;; np.cumsum(x,out=x) ;; np.sqrt(x,out=x) ;; np.maximum.at(x,[1],v)
;; np.fill_diagonal(np.stack([x,x]),v)
"""
#: Of a matrix `x`.
OF_MATRICES = """
np.sum(x) ;; np.prod(x) ;; np.mean(x) ;; np.std(x) ;; np.var(x) ;; np.min(x) ;; np.max(x)
;; np.all(x) ;; np.any(x) ;; np.argmin(x) ;; np.argmax(x) ;; np.median(x) ;; np.cumsum(x)
;; np.cumprod(x) ;; np.sort(x) ;; np.argsort(x) ;; np.ptp(x) ;; np.ravel(x) ;; np.nonzero(x)
;; np.count_nonzero(x) ;; np.flatnonzero(x) ;; np.unique(x) ;; np.diff(x) ;; np.ediff1d(x)
;; np.average(x) ;; np.nansum(x) ;; np.nanmean(x) ;; np.nanstd(x) ;; np.nanmax(x) ;; np.nanmin(x)
;; np.nanargmax(x) ;; np.nanprod(x) ;; np.nanmedian(x) ;; np.nancumsum(x) ;; np.abs(x)
;; np.negative(x) ;; np.positive(x) ;; np.invert(x) ;; np.floor(x) ;; np.ceil(x) ;; np.trunc(x)
;; np.rint(x) ;; np.fix(x) ;; np.sqrt(x) ;; np.cbrt(x) ;; np.square(x) ;; np.exp(x) ;; np.exp2(x)
;; np.expm1(x) ;; np.log(x) ;; np.log2(x) ;; np.log10(x) ;; np.log1p(x) ;; np.sin(x) ;; np.cos(x)
;; np.tan(x) ;; np.arcsin(x) ;; np.arccos(x) ;; np.arctan(x) ;; np.sinh(x) ;; np.cosh(x)
;; np.tanh(x) ;; np.arcsinh(x) ;; np.arccosh(x) ;; np.arctanh(x) ;; np.degrees(x)
;; np.radians(x) ;; np.sign(x) ;; np.isnan(x) ;; np.isinf(x) ;; np.isfinite(x) ;; np.signbit(x)
;; np.conj(x) ;; np.real(x) ;; np.imag(x) ;; np.angle(x) ;; np.i0(x) ;; np.sinc(x)
;; np.bitwise_count(x) ;; np.atleast_1d(x) ;; np.atleast_2d(x) ;; np.atleast_3d(x)
;; np.squeeze(x) ;; np.transpose(x) ;; np.copy(x) ;; np.ones_like(x) ;; np.zeros_like(x)
;; np.flip(x) ;; np.fliplr(x) ;; np.flipud(x) ;; np.rot90(x) ;; np.triu(x) ;; np.tril(x)
;; np.trace(x) ;; np.diag(x) ;; np.diagonal(x) ;; np.asarray(x) ;; np.array(x)
;; np.ascontiguousarray(x) ;; np.nan_to_num(x) ;; np.spacing(x) ;; np.logical_not(x)
;; np.reciprocal(x) ;; np.modf(x) ;; np.frexp(x) ;; np.sum(x,axis=0) ;; np.sum(x,axis=-1)
;; np.sum(x,axis=1) ;; np.sum(x,axis=None) ;; np.prod(x,axis=0) ;; np.prod(x,axis=-1)
;; np.prod(x,axis=1) ;; np.prod(x,axis=None) ;; np.mean(x,axis=0) ;; np.mean(x,axis=-1)
;; np.mean(x,axis=1) ;; np.mean(x,axis=None) ;; np.std(x,axis=0) ;; np.std(x,axis=-1)
;; np.std(x,axis=1) ;; np.std(x,axis=None) ;; np.var(x,axis=0) ;; np.var(x,axis=-1)
;; np.var(x,axis=1) ;; np.var(x,axis=None) ;; np.min(x,axis=0) ;; np.min(x,axis=-1)
;; np.min(x,axis=1) ;; np.min(x,axis=None) ;; np.max(x,axis=0) ;; np.max(x,axis=-1)
;; np.max(x,axis=1) ;; np.max(x,axis=None) ;; np.all(x,axis=0) ;; np.all(x,axis=-1)
;; np.all(x,axis=1) ;; np.all(x,axis=None) ;; np.any(x,axis=0) ;; np.any(x,axis=-1)
;; np.any(x,axis=1) ;; np.any(x,axis=None) ;; np.argmin(x,axis=0) ;; np.argmin(x,axis=-1)
;; np.argmin(x,axis=1) ;; np.argmin(x,axis=None) ;; np.argmax(x,axis=0) ;; np.argmax(x,axis=-1)
;; np.argmax(x,axis=1) ;; np.argmax(x,axis=None) ;; np.median(x,axis=0) ;; np.median(x,axis=-1)
;; np.median(x,axis=1) ;; np.median(x,axis=None) ;; np.cumsum(x,axis=0) ;; np.cumsum(x,axis=-1)
;; np.cumsum(x,axis=1) ;; np.cumsum(x,axis=None) ;; np.sort(x,axis=0) ;; np.sort(x,axis=-1)
;; np.sort(x,axis=1) ;; np.sort(x,axis=None) ;; np.argsort(x,axis=0) ;; np.argsort(x,axis=-1)
;; np.argsort(x,axis=1) ;; np.argsort(x,axis=None) ;; np.ptp(x,axis=0) ;; np.ptp(x,axis=-1)
;; np.ptp(x,axis=1) ;; np.ptp(x,axis=None) ;; np.flip(x,axis=0) ;; np.flip(x,axis=-1)
;; np.flip(x,axis=1) ;; np.flip(x,axis=None) ;; np.unique(x,axis=0) ;; np.unique(x,axis=-1)
;; np.unique(x,axis=1) ;; np.unique(x,axis=None) ;; np.nansum(x,axis=0) ;; np.nansum(x,axis=-1)
;; np.nansum(x,axis=1) ;; np.nansum(x,axis=None) ;; np.nanmean(x,axis=0) ;; np.nanmean(x,axis=-1)
;; np.nanmean(x,axis=1) ;; np.nanmean(x,axis=None) ;; np.nanmax(x,axis=0) ;; np.nanmax(x,axis=-1)
;; np.nanmax(x,axis=1) ;; np.nanmax(x,axis=None) ;; np.sum(x,axis=0,keepdims=True)
;; np.mean(x,axis=0,keepdims=True) ;; np.std(x,axis=0,keepdims=True)
;; np.max(x,axis=0,keepdims=True) ;; np.all(x,axis=0,keepdims=True)
;; np.argmax(x,axis=0,keepdims=True) ;; np.median(x,axis=0,keepdims=True) ;; x.sum() ;; x.sum(0)
;; x.mean(1) ;; x.std(ddof=1) ;; x.var(0,ddof=1) ;; x.max() ;; x.min(0) ;; x.argmax()
;; x.cumsum() ;; x.prod() ;; x.round(1) ;; x.clip(0,1) ;; x.astype(float) ;; x.astype(np.int8)
;; x.astype(bool) ;; x.astype(np.uint8) ;; x.astype(np.float16) ;; x.T ;; x.size ;; x.ndim
;; x.shape ;; x.nbytes ;; x.itemsize ;; x.dtype.itemsize ;; x.ravel() ;; x.reshape(-1)
;; x.flatten() ;; x.tolist() ;; x.item(0) ;; x.any() ;; x.all(0) ;; x.trace() ;; x.diagonal()
;; x.sum(dtype=np.float32) ;; x.mean(dtype=np.float32) ;; x.nonzero() ;; x.repeat(2)
;; x.take([0,1]) ;; x.swapaxes(0,1) ;; x.squeeze() ;; x.conj() ;; x.real ;; x.imag ;; x.copy()
;; x.argsort(0) ;; x.dot(x.T) ;; x.max(axis=-1,keepdims=True) ;; x.view(x.dtype)
;; x.sum(where=x>0) ;; x.max(where=x>0,initial=0) ;; x.min(initial=0) ;; x.sum(initial=3)
;; x.prod(initial=2) ;; x.compress([True,False],axis=0) ;; x[::-1] ;; x[1:] ;; x[:,0]
;; x[...,None] ;; x[x>0] ;; x[[0,1],[1,0]] ;; x[-1] ;; x[0,0] ;; len(x) ;; x.sum()/2
;; x.mean()//1 ;; x==x.T[:2,:2] ;; np.stack([x,x]) ;; np.concatenate([x,x],1) ;; np.vstack([x,x])
;; np.hstack([x,x[:,:1]]) ;; np.split(x,2) ;; np.array_split(x,3) ;; np.where(x)
;; np.einsum('ij->i',x) ;; np.einsum('ij,ij',x,x) ;; np.tensordot(x,x,1) ;; np.matmul(x,x) ;; x@x
;; np.linalg.norm(x) ;; np.linalg.norm(x,1) ;; np.linalg.norm(x,axis=0) ;; np.linalg.det(x)
;; np.linalg.matrix_power(x,2) ;; np.cov(x) ;; np.corrcoef(x) ;; np.histogram(x,bins=2)
;; np.bincount(x.ravel()) ;; np.percentile(x,30,axis=0) ;; np.quantile(x,.3)
;; np.apply_along_axis(np.sum,0,x) ;; np.pad(x,1) ;; np.pad(x,1,mode='edge')
;; np.roll(x,1,axis=1) ;; np.meshgrid(x[0],x[1]) ;; np.ix_([0],[1]) ;; np.delete(x,0,axis=0)
;; np.insert(x,0,5,axis=0) ;; np.append(x,x) ;; np.lexsort((x[0],x[1])) ;; np.partition(x,1)
;; np.argpartition(x,1) ;; np.maximum.reduce(x) ;; np.add.reduce(x) ;; np.add.accumulate(x)
;; np.multiply.reduce(x,1) ;; np.logical_or.reduce(x) ;; np.bitwise_or.reduce(x)
;; np.subtract.reduce(x) ;; np.add.reduceat(x,[0,1]) ;; np.kron(x,x) ;; np.trapezoid(x)
;; np.gradient(x.astype(float)) ;; np.interp(1.5,x[0],x[1]) ;; np.polyfit([0,1],x[0],1)
;; np.array_equal(x,x) ;; np.allclose(x,x) ;; np.isin(x,[1]) ;; np.result_type(x)
;; np.can_cast(x.dtype,np.int64) ;; np.shape(x) ;; np.size(x,0) ;; np.broadcast_to(x,(2,2,2))
;; np.expand_dims(x,0) ;; np.moveaxis(x,0,1) ;; np.resize(x,(3,))
;; np.fromfunction(lambda i,j:i+j,(2,2)) ;; np.indices((2,2)) ;; np.identity(2,x.dtype)+x
;; np.eye(2)@x ;; np.tri(2,dtype=x.dtype)*x ;; np.unravel_index(3,(2,2))
;; np.ravel_multi_index((1,1),(2,2)) ;; np.nanpercentile(x,50) ;; np.float32(x[0,0])
;; int(x[0,1]) ;; float(x.sum()) ;; complex(x[0,0]) ;; str(x.dtype)=='x' ;; x.dtype==np.int8
;; x.dtype.kind=='i' ;; np.issubdtype(x.dtype,np.integer) ;; bool(x.any()) ;; x.sum().item()
;; sum(x) ;; max(x[0]) ;; sorted(x[0]) ;; [v for v in x[0]] ;; list(x[1]) ;; abs(x) ;; -x ;; +x
;; divmod(x,2) ;; x.size**2 ;; np.iinfo(np.int8).max+x ;; np.finfo(np.float32).eps*x
;; np.dstack([x,x]) ;; np.column_stack([x[0],x[1]]) ;; np.rollaxis(x,1) ;; np.block([[x,x]])
;; np.triu_indices(2) ;; np.tril_indices(2) ;; np.searchsorted(np.sort(x[0]),x[1])
;; np.digitize(x,[1,2]) ;; np.clip(x,1,2) ;; np.convolve(x[0],x[1]) ;; np.correlate(x[0],x[1])
;; np.cross(np.append(x[0],1),np.append(x[1],1)) ;; np.vdot(x,x) ;; np.inner(x,x)
;; np.outer(x,x) ;; np.packbits(x>0) ;; np.linalg.inv(x+np.eye(2))
;; np.linalg.solve(x+np.eye(2),x) ;; np.linalg.eigvalsh(x@x.T) ;; np.linalg.svd(x)[1]
;; np.linalg.pinv(x) ;; np.linalg.matrix_rank(x) ;; np.linalg.slogdet(x) ;; np.linalg.qr(x)[1]
;; np.linalg.cholesky(x@x.T+np.eye(2)) ;; np.fft.fft(x[0]) ;; np.fft.rfft(x)
"""
#: Differences that docs/language.md states, or that are in the last digits of f16.
STATED = (
    ("np.round(x,v)", "bool"),
    ("np.logaddexp(x,v)", "uint64"),
    ("np.quantile(x,.3)", "float16"),
    ("np.linalg.svd(x)[1]", "float64"),
    ("np.linalg.pinv(x)", "float64"),
    ("np.linalg.matrix_rank(x)", "float64"),
)


def function(text: str, changes: bool = False) -> Callable[..., Any]:
    lines = [f"    {text}", "    return x"] if changes else [f"    return {text}"]
    source = "\n".join(["def f(x, v):", *lines, ""])
    name = f"<sweep {text}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {"np": np}
    exec(compile(source, name, "exec"), scope)
    made: Callable[..., Any] = scope["f"]
    return made


class Raised:
    """An error, by its class."""

    def __init__(self, fault: Exception) -> None:
        self.kind = type(fault)
        # Before it runs, or once it has: docs/language.md.
        self.refused = isinstance(fault, ProgramError) or type(fault) is ArithmeticError


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    try:
        return f(*copy.deepcopy(args))
    except Exception as fault:
        return Raised(fault)


def is_same(want: Any, got: Any) -> bool:
    if isinstance(want, Raised) or isinstance(got, Raised):
        return isinstance(got, Raised) and isinstance(want, Raised) and want.kind is got.kind
    if isinstance(want, tuple | list) and isinstance(got, tuple | list):
        return len(want) == len(got) and all(map(is_same, want, got))
    if type(want) is not type(got):
        return False
    if isinstance(want, np.ndarray | np.generic):
        if want.dtype != got.dtype or want.shape != got.shape:
            return False
        return bool(np.allclose(want, got, rtol=1e-5, atol=1e-6, equal_nan=True))
    return bool(want == got) or (want != want and got != got)


def stated(text: str, x: Any, v: Any) -> bool:
    names = (x.dtype.name, np.asarray(v).dtype.name)
    return any(text == one and kind in names for one, kind in STATED)


def texts(block: str) -> list[str]:
    return [text.strip() for text in block.split(";;")]


def sweep(text: str, arrays: Any, numbers: Any, changes: bool = False) -> int:
    """Compares; gives how many cases were accepted."""
    f = function(text, changes)
    compiled, accepted = dl.compile(f, backend="reference"), 0
    for x in arrays:
        for v in numbers:
            got = outcome(compiled, x, v)
            if isinstance(got, Raised) and got.refused:
                continue
            want = outcome(f, x, v)
            assert is_same(want, got) or stated(text, x, v), (
                f"{text}, x = {x!r}, v = {v!r}: NumPy {want!r}, compiled {got!r}"
            )
            accepted += 1
    return accepted


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
def test_functions_of_arrays_and_numbers(part: int) -> None:
    with np.errstate(all="ignore"):
        found = [sweep(text, VECTORS, NUMBERS) for text in texts(OF_BOTH)[part::4]]
    assert sum(found) > 2000


@pytest.mark.filterwarnings("ignore")
def test_statements_that_change_an_array() -> None:
    with np.errstate(all="ignore"):
        found = [sweep(text, VECTORS, NUMBERS, True) for text in texts(IN_PLACE)]
    assert sum(found) > 1500


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(3))
def test_functions_of_matrices(part: int) -> None:
    with np.errstate(all="ignore"):
        found = [sweep(text, MATRICES, [1]) for text in texts(OF_MATRICES)[part::3]]
    assert sum(found) > 1000
