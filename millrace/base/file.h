// Whole-file reading and writing that never leaves half a file behind.
//
// Errors name the path. Missing or unreadable: Error(kBadFile). No space, quota: Error(kNoSpace).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

// The whole file. One of more than `max_bytes` is refused without being read to its end.
std::string read_file(const std::string& path, uint64_t max_bytes = UINT64_MAX);

// Writes `path`.tmp.PID beside the target, flushes it to disk, renames it over the target and
// flushes the folder. On failure the temporary file is removed and the target is as it was. Not for
// two threads that write the same path at once.
void write_file_atomically(const std::string& path, std::string_view content);

// Flushes a folder's list of names to disk, so that what was renamed in it outlives a power cut. A
// file system that cannot do it is no failure.
void sync_directory(const std::string& path);

// Creates a directory and its parents; no error when it exists.
void make_directories(const std::string& path);

// Turns errno of a failed write into the right Error: kNoSpace for ENOSPC, EDQUOT and EFBIG, else
// kBadFile.
[[noreturn]] void throw_write_error(const std::string& path, int error_number);

// CRC-32 (zlib's), used as checksum in checkpoints. `seed` continues a running sum.
uint32_t crc32_of(const void* data, std::size_t bytes, uint32_t seed = 0);

}  // namespace millrace
