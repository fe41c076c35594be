"""Prints the polynomial coefficients of src/ops/contract_math.h.

Each polynomial interpolates its function at Chebyshev nodes (within a factor of two of the best polynomial of its
degree), computed with 60 digits and rounded once to the precision of use. The error printed is that of the rounded
coefficients in exact arithmetic, relative to the function computed.

    python3 tools/contract_math_coefficients.py        (needs mpmath)
"""
import struct

from mpmath import atanh, cos, exp, fabs, log, log1p, lu_solve, matrix, mp, mpf, pi, sin, sqrt, tanh

mp.dps = 60


def to_f32(x):
    return mpf(struct.unpack("f", struct.pack("f", float(x)))[0])


def to_f64(x):
    return mpf(float(x))


def fit(g, low, high, degree):
    """Coefficients c of the polynomial with p(x) = g(x) at the Chebyshev nodes of [low, high]."""
    n = degree + 1
    nodes = [(low + high) / 2 + (high - low) / 2 * cos((2 * i + 1) * pi / (2 * n)) for i in range(n)]
    a = matrix(n, n)
    b = matrix(n, 1)
    for i, x in enumerate(nodes):
        x = mpf(0) if fabs(x) < mpf(10) ** -40 else x
        for j in range(n):
            a[i, j] = x**j
        b[i] = g(x)
    return list(lu_solve(a, b))


def report(name, g, whole, assemble, low, high, degree, rounding):
    """g: what the polynomial in its own variable approximates; whole(x): the function; assemble(x, p): its
    approximation given the polynomial as a callable."""
    c = [rounding(v) for v in fit(g, mpf(low), mpf(high), degree)]

    def p(x):
        r = mpf(0)
        for v in reversed(c):
            r = r * x + v
        return r

    worst = mpf(0)
    lo, hi = mpf(low), mpf(high)
    for i in range(2001):
        x = lo + (hi - lo) * i / 2000 + mpf(10) ** -25
        worst = max(worst, fabs(assemble(x, p) / whole(x) - 1))
    print(f"{name}: degree {degree} on [{float(low):.6g}, {float(high):.6g}], relative error {float(worst):.2g}")
    for i, v in enumerate(c):
        print(f"  c{i} = {float(v).hex() if rounding is to_f64 else repr(float(v))}  ({float(v).hex()})")


def main():
    ln2 = log(2)
    half = mpf(1) / 2
    f32, f64 = to_f32, to_f64

    # 2^x = 1 + x p(x)
    for rounding, degree in ((f32, 5), (f64, 11)):
        report("exp2", lambda x: (exp(x * ln2) - 1) / x, lambda x: exp(x * ln2), lambda x, p: 1 + x * p(x),
               -half, half, degree, rounding)
    # e^x = 1 + x + x^2 p(x)
    report("exp", lambda x: (exp(x) - 1 - x) / x**2 if x != 0 else half, lambda x: exp(x), lambda x, p: 1 + x + x * x * p(x),
           -ln2 / 2, ln2 / 2, 4, f32)
    # log(1+f) = f - f^2/2 + f^3 p(f)
    report("log", lambda f: (log1p(f) - f + f * f / 2) / f**3, lambda f: log1p(f),
           lambda f, p: f - f * f / 2 + f**3 * p(f), sqrt(half) - 1, sqrt(mpf(2)) - 1, 8, f32)
    # log(m) = 2 s + s^3 p(s^2), s = (m-1)/(m+1); p in z = s^2
    smax = (sqrt(mpf(2)) - 1) / (sqrt(mpf(2)) + 1)
    report("log f64", lambda z: (2 * atanh(sqrt(z)) - 2 * sqrt(z)) / sqrt(z) ** 3, lambda z: 2 * atanh(sqrt(z)),
           lambda z, p: 2 * sqrt(z) + sqrt(z) ** 3 * p(z), mpf(10) ** -30, smax**2, 8, f64)
    # tanh(x) = x + x^3 p(x^2)
    report("tanh", lambda z: (tanh(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, lambda z: tanh(sqrt(z)),
           lambda z, p: sqrt(z) + sqrt(z) ** 3 * p(z), mpf(10) ** -30, mpf("0.390625"), 5, f32)
    # sin(x) = x + x^3 p(x^2), cos(x) = 1 - x^2/2 + x^4 p(x^2)
    zmax = (pi / 4) ** 2
    report("sin f64", lambda z: (sin(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3, lambda z: sin(sqrt(z)),
           lambda z, p: sqrt(z) + sqrt(z) ** 3 * p(z), mpf(10) ** -30, zmax, 6, f64)
    report("cos f64", lambda z: (cos(sqrt(z)) - 1 + z / 2) / z**2, lambda z: cos(sqrt(z)),
           lambda z, p: 1 - z / 2 + z * z * p(z), mpf(10) ** -20, zmax, 6, f64)

    print("constants")
    for name, value in (("ln2", ln2), ("log2e", 1 / ln2), ("pi/2", pi / 2), ("2/pi", 2 / pi)):
        print(f"  {name} f32 {float(f32(value)).hex()}  f64 {float(value).hex()}")
    for name, value, bits in (("ln2", ln2, 15), ("ln2", ln2, 32)):
        head = mpf(int(value * 2**bits)) / 2**bits
        print(f"  {name} head of {bits} bits {float(head).hex()} rest f32 {float(f32(value - head)).hex()} "
              f"f64 {float(value - head).hex()}")
    rest = pi / 2
    for i in range(3):
        part = f64(rest)
        rest -= part
        print(f"  pi/2 part {i + 1} {float(part).hex()}")
    rest = 1 / ln2
    for i in range(2):
        part = f64(rest)
        rest -= part
        print(f"  log2e part {i + 1} {float(part).hex()}")


if __name__ == "__main__":
    main()
