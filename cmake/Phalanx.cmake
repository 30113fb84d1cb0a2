# phx_library(<name> SOURCES ... [DEPS ...]), phx_test(<name> SOURCES ... [DEPS ...]), phx_fuzzer, phx_command.
# phx_rank_library(<name> [IN_PYTHON] FOLDER <folder in a wheel> SOURCES ... [DEPS ...]): what ranks load. IN_PYTHON:
# the interpreter that loads it gives its functions.
# phx_command(... NOT_INSTALLED): a helper of tests and benchmarks, built into bin/ but no part of the wheel.
# Includes are written from src/ ("base/clock.h").

add_library(phx_flags INTERFACE)
target_include_directories(phx_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(phx_flags INTERFACE PHALANX_VERSION="${PROJECT_VERSION}")
target_compile_options(phx_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
                                           -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(PHALANX_WARNINGS_ARE_ERRORS)
  target_compile_options(phx_flags INTERFACE -Werror)
endif()
if(PHALANX_FUZZ)
  # Libraries tell the fuzzer which of their branches an input reached.
  target_compile_options(phx_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
find_program(MOLD mold)
if(MOLD)
  target_link_options(phx_flags INTERFACE -fuse-ld=mold)
endif()

function(phx_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC phx_flags ${ARG_DEPS})
endfunction()

# A library that a rank's Python loads: position-independent, with the C library alone beside it (an old one will do)
# and nothing to be seen but what exports.map names. A sanitizer's runtime would be missing there.
function(phx_rank_library name)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    return()
  endif()
  cmake_parse_arguments(ARG "IN_PYTHON" "FOLDER" "SOURCES;DEPS" ${ARGN})
  set(CMAKE_CXX_IMPLICIT_LINK_LIBRARIES "" PARENT_SCOPE) # else CMake adds libstdc++ to what C links
  add_library(${name} SHARED ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE phx_flags phx_rank_runtime ${ARG_DEPS})
  target_compile_options(${name} PRIVATE -fno-exceptions -fno-rtti -fvisibility=hidden -fvisibility-inlines-hidden
                                         -fno-threadsafe-statics)
  # Templates of the standard library are not looked for in libstdc++.
  target_compile_definitions(${name} PRIVATE _GLIBCXX_EXTERN_TEMPLATE=0 PHALANX_IN_RANKS)
  if(NOT ARG_IN_PYTHON)
    target_link_options(${name} PRIVATE -Wl,-z,defs)
  endif()
  target_link_options(${name} PRIVATE -static-libgcc
                                      -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/exports.map
                                      $<$<CONFIG:Release>:-s>)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE C POSITION_INDEPENDENT_CODE ON
                                           LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/exports.map
                                           LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  if(SKBUILD)
    install(TARGETS ${name} LIBRARY DESTINATION ${ARG_FOLDER})
  else()
    install(TARGETS ${name} LIBRARY DESTINATION lib)
  endif()
endfunction()

function(phx_test name)
  if(NOT PHALANX_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE phx_flags ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  if(CMAKE_BUILD_TYPE STREQUAL Release)
    # The code under test is as in the commands; the tests' own, most of it gtest's templates, is compiled in half the
    # time.
    target_compile_options(${name} PRIVATE -O1)
  endif()
  add_test(NAME ${name} COMMAND ${name})
endfunction()

# A program of libFuzzer in the preset fuzz; in others its function is a part of fuzz_corpus_test, under its own name.
function(phx_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(PHALANX_FUZZ)
    add_executable(${name} ${ARG_SOURCES})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(${name} PRIVATE phx_flags ${ARG_DEPS})
  elseif(PHALANX_TESTS)
    add_library(${name} OBJECT ${ARG_SOURCES})
    target_compile_definitions(${name} PRIVATE LLVMFuzzerTestOneInput=${name})
    target_link_libraries(${name} PRIVATE phx_flags ${ARG_DEPS})
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    set_property(GLOBAL APPEND PROPERTY PHX_FUZZERS ${name})
    set_property(GLOBAL APPEND_STRING PROPERTY PHX_FUZZER_LINES "PHX_FUZZER(${name}, \"${folder}\")\n")
  endif()
endfunction()

# Each phx_fuzzer that came before with its corpus.
function(phx_corpus_test name)
  if(PHALANX_FUZZ)
    return()
  endif()
  phx_test(${name} ${ARGN})
  if(TARGET ${name})
    get_property(fuzzers GLOBAL PROPERTY PHX_FUZZERS)
    get_property(lines GLOBAL PROPERTY PHX_FUZZER_LINES)
    file(CONFIGURE OUTPUT fuzzers.inc CONTENT "${lines}" @ONLY)
    target_include_directories(${name} PRIVATE ${PROJECT_BINARY_DIR}/src)
    target_link_libraries(${name} PRIVATE ${fuzzers})
  endif()
endfunction()

# The command once more, linked with the system's C library: for tests that look into a process from outside, which a
# static one does not let them. Nothing is compiled again.
function(phx_dynamic_copy name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  if(NOT PHALANX_TESTS)
    return()
  endif()
  add_executable(${name}-dynamic $<TARGET_OBJECTS:${name}>)
  target_link_libraries(${name}-dynamic PRIVATE phx_flags ${ARG_DEPS})
  set_target_properties(${name}-dynamic PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/dynamic
                                                   OUTPUT_NAME ${name})
endfunction()

function(phx_command name)
  cmake_parse_arguments(ARG "NOT_INSTALLED" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE phx_flags ${ARG_DEPS})
  if(PHALANX_STATIC)
    target_link_options(${name} PRIVATE -static)
  endif()
  target_link_options(${name} PRIVATE $<$<CONFIG:Release>:-s>)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  if(NOT ARG_NOT_INSTALLED)
    if(SKBUILD)
      # In a wheel, commands are scripts: pip puts them beside the interpreter.
      install(TARGETS ${name} RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})
    else()
      install(TARGETS ${name} RUNTIME DESTINATION bin)
    endif()
  endif()
endfunction()
