"""The instruction set of the register machine. An instruction is a row of int32: (op, target, a, b, c).

Two interpreters run it: `evaluate.py` over blocks of events (predicates of one event), and `interpret.py` for one event
and one run (conditions on bound events, and measures). A register holds a null flag and 64 bits: an int64, a float64
(`F…`), or a boolean 0 or 1. An overflow becomes the bound of int64 and is counted (checked.py).
Tested by: tests/kernels/test_machine.py
"""

CONST = 0  # target = constants[a]; null if b
COLUMN = 1  # target = columns[a] of the current event
REGISTER = 2  # target = run register a (never null)                         (one run only)
ROW = 3  # target = columns[b] of the event in run register a; null if none  (one run only)
NULL_IF_ZERO = 4  # target = a, null if register b is 0
DISTINCT = 5  # target = number of distinct values of columns[b] among events bound to variable a  (one run only)

ADD = 10
SUB = 11
MUL = 12
NEG = 13
ABS = 14
MOD = 15  # sign of the dividend, as in SQL; null if b is 0
MIN = 16
MAX = 17
SCALE = 18  # target = a * constants[b]
TO_FLOAT = 19  # target = a / constants[b] as the nearest float64

FADD = 20
FSUB = 21
FMUL = 22
FDIV = 23  # null if b is 0
FNEG = 24
FABS = 25
FMIN = 26
FMAX = 27
FSQRT = 28  # null if a is negative
FSIN = 29
FCOS = 30
FASIN = 31  # null outside [-1, 1]
FFLOOR = 32
QUOTIENT = 33  # target = a / constants[b] (above 0) of int64, rounded down
FADD_REST = 34  # target = a + b less the float64 nearest to it (twofold.py)
FMUL_REST = 35  # target = a * b less the float64 nearest to it
FSETTLE = 36  # target = a, or 0 where a is no more than the error of numbers of size b
TO_FLOAT_REST = 37  # target = a / constants[b] less the float64 nearest to it; a is int64

LT = 40
LE = 41
EQ = 42
NE = 43
FLT = 44
FLE = 45
FEQ = 46
FNE = 47

AND = 50  # null as SQL's unknown
OR = 51
NOT = 52
IS_NULL = 53
SELECT = 54  # target = b if a is true else c

MACHINE_WIDTH = 5
