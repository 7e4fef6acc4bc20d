"""What the tests in a Python process share: the C++ hook scopes through ctypes, and PyTorch's own hooks, counting.
Importing this loads neither the library nor torch, so that a test can choose the order."""

import contextlib
import ctypes
import os

LIBRARY = os.path.join(os.environ["REPRISE_LIBRARY_DIR"], "libpython_hooks.so")


def load():
    library = ctypes.CDLL(LIBRARY)
    for name in ("hooks_open", "hooks_open_none", "meter_open"):
        getattr(library, name).restype = ctypes.c_void_p
    for name in ("hooks_packs", "hooks_unpacks", "hooks_alive", "meter_live_bytes", "meter_close"):
        getattr(library, name).restype = ctypes.c_long
    for name in ("hooks_close", "meter_close"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    for name in ("hooks_open", "hooks_refuse"):
        getattr(library, name).argtypes = [ctypes.c_bool]
    library.checkpointed_step_equals_plain.argtypes = [ctypes.c_bool, ctypes.c_bool]
    library.state_after_region_with.argtypes = [ctypes.c_char_p, ctypes.c_bool, ctypes.POINTER(ctypes.c_long)]
    library.state_after_region_with.restype = ctypes.c_double
    return library


@contextlib.contextmanager
def hooks(lib, copying=False):
    """A C++ scope that counts; yields a function for how many tensors were packed and unpacked since."""
    packs, unpacks = lib.hooks_packs(), lib.hooks_unpacks()
    scope = lib.hooks_open(copying)
    try:
        yield lambda: (lib.hooks_packs() - packs, lib.hooks_unpacks() - unpacks)
    finally:
        lib.hooks_close(scope)


@contextlib.contextmanager
def no_hooks(lib):
    scope = lib.hooks_open_none()
    try:
        yield
    finally:
        lib.hooks_close(scope)


class PythonHooks:
    """PyTorch's own hooks, counting."""

    def __init__(self):
        self.packs = self.unpacks = 0

    def pack(self, tensor):
        self.packs += 1
        return tensor

    def unpack(self, tensor):
        self.unpacks += 1
        return tensor

    def scope(self):
        from torch.autograd.graph import saved_tensors_hooks
        return saved_tensors_hooks(self.pack, self.unpack)
