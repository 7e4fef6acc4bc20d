"""The quantile of PGAC's threshold is NumPy's, to the last bit."""

import ctypes
import os
import pathlib
import unittest

import numpy

lib = ctypes.CDLL(str(pathlib.Path(os.environ["REPRISE_LIBRARY_DIR"]) / "libpython_quantile.so"))
lib.influence_quantile.restype = ctypes.c_double
lib.influence_quantile.argtypes = [ctypes.POINTER(ctypes.c_double), ctypes.c_size_t, ctypes.c_double]


def ours(values, q):
    return lib.influence_quantile(values.ctypes.data_as(ctypes.POINTER(ctypes.c_double)), len(values), q)


class Quantile(unittest.TestCase):
    def test_drawn_values(self):
        draw = numpy.random.default_rng(4)
        for count in (1, 2, 3, 4, 7, 10, 24, 100):
            for scale in (1e-30, 1, 1e30):
                values = scale * draw.lognormal(sigma=3, size=count)
                for q in [0, 0.1, 0.25, 1 / 3, 0.5, 0.75, 0.9, 1, *draw.random(20)]:
                    self.assertEqual(ours(values, q), float(numpy.quantile(values, q)), (count, scale, q))

    def test_equal_values_and_zeros(self):
        for values in ([0.0] * 5, [2.5] * 4, [0.0, 0.0, 1.0]):
            values = numpy.array(values)
            for q in (0, 0.3, 0.5, 0.7, 1):
                self.assertEqual(ours(values, q), float(numpy.quantile(values, q)))

    def test_what_is_not_known_is_left_out(self):
        values = numpy.array([3.0, numpy.nan, 1.0, numpy.nan, 2.0])
        self.assertEqual(ours(values, 0.4), float(numpy.nanquantile(values, 0.4)))


if __name__ == "__main__":
    unittest.main()
