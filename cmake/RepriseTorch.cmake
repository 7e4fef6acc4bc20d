# Finds LibTorch without its own package file, which looks for CUDA toolkits, MKL and protobuf that a
# program on top of the shipped libraries does not need. This file serves the build of reprise and, being
# installed beside its package file, every project that uses reprise.
#
#   reprise_find_torch(error_variable [HINT folder])
#
# makes the imported target reprise_torch::torch and sets REPRISE_TORCH_DIR, REPRISE_TORCH_VERSION and
# REPRISE_TORCH_PYTHON (the interpreter the wheel belongs to, or empty); or leaves the reason in
# error_variable. It looks, in this order, at the target `torch` of an earlier find_package(Torch), the
# variable REPRISE_TORCH_DIR (CMake's or the environment's), HINT, and the python3 on the path. Wheels (CPU
# or CUDA, no toolkit needed) and unpacked LibTorch have the same layout: include/ and lib/.
# The oldest and the newest that are tested (docs/results/versions.md). Others differ in LibTorch's internals (src/libtorch/base/versions.h): older ones do not
# compile, and with newer ones only the tests can tell.
set(REPRISE_TORCH_OLDEST 2.11)
set(REPRISE_TORCH_NEWEST 2.15)
set(reprise_torch_versions "${REPRISE_TORCH_OLDEST}")
if(NOT REPRISE_TORCH_OLDEST STREQUAL REPRISE_TORCH_NEWEST)
  string(APPEND reprise_torch_versions " to ${REPRISE_TORCH_NEWEST}")
endif()
set(reprise_torch_remedy
  "Pass -DREPRISE_TORCH_DIR=<folder>: the `torch` folder of a Python installation, or an unpacked LibTorch, of version ${reprise_torch_versions}.")

function(reprise_find_torch error_variable)
  cmake_parse_arguments(arg "" HINT "" ${ARGN})
  _reprise_locate_torch("${arg_HINT}")
  if(NOT error)
    _reprise_check_torch("${dir}" "${origin}")
  endif()
  if(NOT error)
    _reprise_import_torch("${dir}")
    message(STATUS "LibTorch ${version} in ${dir}")
    set(REPRISE_TORCH_DIR "${dir}" PARENT_SCOPE)
    set(REPRISE_TORCH_VERSION "${version}" PARENT_SCOPE)
    set(REPRISE_TORCH_PYTHON "${python}" PARENT_SCOPE)
  endif()
  set(${error_variable} "${error}" PARENT_SCOPE)
endfunction()

# Gives the caller dir and origin (for messages), or error.
function(_reprise_locate_torch hint)
  set(dir "")
  set(error "")
  if(TARGET torch)
    set(origin "the target `torch` of an earlier find_package(Torch)")
    get_target_property(includes torch INTERFACE_INCLUDE_DIRECTORIES)
    foreach(include IN LISTS includes)
      if(EXISTS "${include}/torch/csrc/api/include/torch/torch.h")
        cmake_path(GET include PARENT_PATH dir)
      endif()
    endforeach()
    if(NOT dir)
      set(error "No LibTorch: ${origin} has no folder with LibTorch's headers (it has: ${includes}).")
    endif()
  elseif(REPRISE_TORCH_DIR)
    set(origin "REPRISE_TORCH_DIR")
    set(dir "${REPRISE_TORCH_DIR}")
  elseif(DEFINED ENV{REPRISE_TORCH_DIR} AND NOT "$ENV{REPRISE_TORCH_DIR}" STREQUAL "")
    set(origin "the environment's REPRISE_TORCH_DIR")
    set(dir "$ENV{REPRISE_TORCH_DIR}")
  elseif(hint AND IS_DIRECTORY "${hint}")
    set(origin "the place where reprise was built")
    set(dir "${hint}")
  else()
    set(origin "the python3 on the path")
    # find_spec does not import torch: quick, and works where its libraries cannot be loaded. From / so
    # that a folder named torch in the working directory is not taken for it.
    execute_process(COMMAND python3 -c
      "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s and s.origin else '')"
      WORKING_DIRECTORY / OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(failed OR NOT dir)
      set(error "No LibTorch: REPRISE_TORCH_DIR is not set, and ${origin} has no torch. ${reprise_torch_remedy}")
    endif()
  endif()
  set(dir "${dir}" PARENT_SCOPE)
  set(origin "${origin}" PARENT_SCOPE)
  set(error "${error}" PARENT_SCOPE)
endfunction()

# The version by its header (whose place moved in 2.9), or by the file that unpacked LibTorch carries.
function(_reprise_torch_version dir result)
  set(version "")
  foreach(header include/torch/headeronly/version.h include/torch/csrc/api/include/torch/version.h)
    if(NOT version AND EXISTS "${dir}/${header}")
      file(STRINGS "${dir}/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX REPLACE "[^0-9;]" "" lines "${lines}")
      string(REPLACE ";" "." version "${lines}")
    endif()
  endforeach()
  if(NOT version AND EXISTS "${dir}/build-version")
    file(STRINGS "${dir}/build-version" version LIMIT_COUNT 1)
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# Gives the caller version and python, or error.
function(_reprise_check_torch dir origin)
  set(where "${dir} (from ${origin})")
  set(error "")
  set(version "")
  if(NOT IS_DIRECTORY "${dir}")
    set(error "No LibTorch: ${where} is not a folder. ${reprise_torch_remedy}")
  else()
    _reprise_torch_version("${dir}" version)
    string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${version}")
    if(NOT minor)
      set(error "No LibTorch: ${where} has no include/torch/headeronly/version.h. ${reprise_torch_remedy}")
    elseif(minor VERSION_LESS REPRISE_TORCH_OLDEST)
      set(error "LibTorch ${version} in ${where} is not supported: reprise needs ${reprise_torch_versions}. ${reprise_torch_remedy}")
    else()
      foreach(file include/torch/csrc/api/include/torch/torch.h include/ATen/core/Tensor.h lib/libc10.so
              lib/libtorch_cpu.so lib/libtorch.so)
        if(NOT error AND NOT EXISTS "${dir}/${file}")
          set(error "LibTorch ${version} in ${where} is incomplete: it has no ${file}. ${reprise_torch_remedy}")
        endif()
      endforeach()
      if(NOT error AND minor VERSION_GREATER REPRISE_TORCH_NEWEST)
        message(WARNING "LibTorch ${version} in ${where} is newer than those that reprise is tested with, ${reprise_torch_versions}. Run its tests before you rely on it.")
      endif()
    endif()
  endif()
  # The interpreter of <prefix>/lib/python3.x/site-packages/torch.
  cmake_path(SET python NORMALIZE "${dir}/../../../../bin/python3")
  if(NOT EXISTS "${python}")
    set(python "")
    if(origin STREQUAL "the python3 on the path")
      set(python python3)
    endif()
  endif()
  set(python "${python}" PARENT_SCOPE)
  set(version "${version}" PARENT_SCOPE)
  set(error "${error}" PARENT_SCOPE)
endfunction()

# Names of our own, so that a later find_package(Torch) defines its `torch`, `torch_cpu` and `c10` as ever.
function(_reprise_import_torch dir)
  if(TARGET reprise_torch::torch)
    return()
  endif()
  if(TARGET torch)
    add_library(reprise_torch::torch INTERFACE IMPORTED)
    target_link_libraries(reprise_torch::torch INTERFACE torch)
    return()
  endif()
  _reprise_import_library(c10 "${dir}")
  _reprise_import_library(torch_cpu "${dir}")
  target_link_libraries(reprise_torch::torch_cpu INTERFACE reprise_torch::c10)
  _reprise_import_library(torch "${dir}")
  target_link_libraries(reprise_torch::torch INTERFACE reprise_torch::torch_cpu)
  # The definitions that find_package(Torch) would give: inline functions of LibTorch's headers depend on
  # them, and must be the same in every file of a program.
  set(targets "${dir}/share/cmake/Caffe2/Caffe2Targets.cmake")
  if(EXISTS "${targets}")
    file(READ "${targets}" text)
    if(text MATCHES "target_properties\\(torch_cpu PROPERTIES[ \n]+INTERFACE_COMPILE_DEFINITIONS \"([^\"$]*)\"")
      target_compile_definitions(reprise_torch::torch INTERFACE ${CMAKE_MATCH_1})
    endif()
  endif()
  # LibTorch's libraries export parts of a std::filesystem of their own. In a CUDA build libtorch.so has some functions and
  # libtorch_cpu.so others, and its remove_all() ends the program. So the standard library is searched first.
  if(UNIX AND NOT APPLE)
    target_link_options(reprise_torch::torch INTERFACE "LINKER:--push-state,--no-as-needed,-lstdc++,--pop-state")
  endif()
  # Nothing refers to the CUDA libraries by name (they register their kernels when loaded), so a linker
  # that drops unneeded libraries would drop them; what they need themselves is found at run time.
  foreach(name c10_cuda torch_cuda)
    if(EXISTS "${dir}/lib/lib${name}.so")
      target_link_options(reprise_torch::torch INTERFACE
        "LINKER:--push-state,--no-as-needed,${dir}/lib/lib${name}.so,--pop-state")
      set(cuda ON)
    endif()
  endforeach()
  if(cuda)
    target_link_options(reprise_torch::torch INTERFACE "LINKER:--allow-shlib-undefined")
  endif()
endfunction()

function(_reprise_import_library name dir)
  add_library(reprise_torch::${name} SHARED IMPORTED)
  set_target_properties(reprise_torch::${name} PROPERTIES
    IMPORTED_LOCATION "${dir}/lib/lib${name}.so"
    INTERFACE_INCLUDE_DIRECTORIES "${dir}/include;${dir}/include/torch/csrc/api/include")
endfunction()
