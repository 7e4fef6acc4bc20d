// Needs a header, an inline function and a symbol of LibTorch, and little time to compile.
#include <c10/core/Device.h>
#include <torch/version.h>

#include <iostream>

int main() { std::cout << TORCH_VERSION << " on " << c10::Device(c10::kCPU) << "\n"; }
