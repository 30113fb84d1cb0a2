# Debian's packages, linked as static archives so that the commands run on any glibc or none; with PHALANX_SHARED_LIBS
# the shared libraries of a system that packages no archives.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
if(PHALANX_TESTS)
  find_package(GTest REQUIRED)
endif()
find_program(PROTOC protoc REQUIRED)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

# Debian's CMake packages and plain -l name the shared libraries: take the archives that pkg-config knows of.
function(phx_packages name)
  if(PHALANX_SHARED_LIBS)
    pkg_check_modules(${name}_PC REQUIRED IMPORTED_TARGET ${ARGN})
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE PkgConfig::${name}_PC Threads::Threads)
    return()
  endif()
  pkg_check_modules(${name}_PC REQUIRED ${ARGN})
  set(archives "")
  foreach(lib ${${name}_PC_STATIC_LIBRARIES})
    find_library(archive_${lib} NAMES lib${lib}.a)
    if(archive_${lib})
      list(APPEND archives ${archive_${lib}})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES archives)
  add_library(${name} INTERFACE)
  target_link_libraries(${name} INTERFACE -Wl,--start-group ${archives} -Wl,--end-group Threads::Threads)
endfunction()

# phx_find_library(<variable> <name>): of one that needs no others.
function(phx_find_library variable name)
  if(PHALANX_SHARED_LIBS)
    find_library(${variable} NAMES ${name} REQUIRED)
  else()
    find_library(${variable} NAMES lib${name}.a REQUIRED)
  endif()
endfunction()

# Abseil: Status and StatusOr.
phx_packages(phx_absl absl_status absl_statusor)

# gRPC + protobuf: streams and contracts.
phx_packages(phx_grpc grpc++ protobuf)

# OpenSSL, which gRPC's TLS is of: certificates from a job's token, and images of checkpoints between agents.
phx_packages(phx_openssl libssl libcrypto)

# SQLite: the event record.
phx_find_library(SQLITE_LIBRARY sqlite3)
add_library(phx_sqlite INTERFACE)
target_link_libraries(phx_sqlite INTERFACE ${SQLITE_LIBRARY} m Threads::Threads)

# fmt and spdlog (texts and logging): Debian has no static archive of either. spdlog is header-only, used by one file.
# fmt of version 9 is compiled once (phx_fmt of src/base), any other is header-only.
find_path(SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED)
find_path(FMT_INCLUDE fmt/format.h REQUIRED)
file(STRINGS ${FMT_INCLUDE}/fmt/core.h FMT_IS_9 REGEX "^#define FMT_VERSION 9[0-9][0-9][0-9][0-9]$")

# libdeflate: CRC-32 of checkpoints, in commands and, by the same archive, in what ranks load.
phx_find_library(DEFLATE_LIBRARY deflate)
find_path(DEFLATE_INCLUDE libdeflate.h REQUIRED)
add_library(phx_deflate INTERFACE)
target_include_directories(phx_deflate SYSTEM INTERFACE ${DEFLATE_INCLUDE})
target_link_libraries(phx_deflate INTERFACE ${DEFLATE_LIBRARY})

# liburing: checkpoints go to disk with many writes under way.
phx_find_library(URING_LIBRARY uring)
add_library(phx_uring INTERFACE)
target_link_libraries(phx_uring INTERFACE ${URING_LIBRARY})

# c-ares: names resolve in a static binary without dlopen.
phx_find_library(CARES_LIBRARY cares)

# nlohmann-json and CLI11 are header-only.
find_path(JSON_INCLUDE nlohmann/json.hpp REQUIRED)
find_path(CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
