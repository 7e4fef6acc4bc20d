# How every target of this project is compiled: C++20, warnings as errors on our own code (LibTorch's
# headers count as system headers), sanitizers, ccache, output folders. Nothing here reaches a project
# that links the installed library.
set(REPRISE_SANITIZE "" CACHE STRING "Sanitizers for all targets: address,undefined or thread; empty for none")
option(REPRISE_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()
  # NDEBUG everywhere: without it LibTorch's headers give some classes (at::RecordFunction) more members than
  # they have in the shipped libraries, which are built with it.
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
  set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g -DNDEBUG")
  # Line tables only: full debug information of LibTorch's headers makes every object file huge.
  set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer -DNDEBUG")
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
endif()

find_program(REPRISE_CCACHE ccache)
mark_as_advanced(REPRISE_CCACHE)
if(PROJECT_IS_TOP_LEVEL AND REPRISE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache accepts precompiled headers only with these; see "Precompiled headers" in its manual.
  set(CMAKE_CXX_COMPILER_LAUNCHER env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${REPRISE_CCACHE})
  set(reprise_pch_flags $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# Before the first line of a source that reads most of LibTorch the compiler is busy for seconds, so programs join many
# sources to one unit. The library joins few, for it is what a developer rebuilds most.
set(reprise_program_batch 32)

# Applies the above to a target of ours.
function(reprise_compile target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  # LibTorch is built with it, and some of its classes (at::RecordFunction) have another layout without.
  target_compile_definitions(${target} PRIVATE NDEBUG)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic
    # GCC 13 takes what a view of arguments refers to for a part of the view.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-dangling-reference>
    $<$<BOOL:${REPRISE_WERROR}>:-Werror> ${reprise_pch_flags})
  if(REPRISE_SANITIZE)
    # The checks' own branches make the compiler see uninitialized values where there are none.
    target_compile_options(${target} PRIVATE -fsanitize=${REPRISE_SANITIZE} -fno-sanitize-recover=all
      -Wno-maybe-uninitialized)
    if(REPRISE_SANITIZE MATCHES thread)
      # Reference counts of LibTorch and the standard library use fences, which this sanitizer cannot see.
      target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
    endif()
    if(REPRISE_SANITIZE MATCHES undefined)
      # vptr checks need the type information of LibTorch's hidden classes; they would be false alarms.
      target_compile_options(${target} PRIVATE -fno-sanitize=vptr)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${REPRISE_SANITIZE})
  endif()
endfunction()
