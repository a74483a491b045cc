// Reads PNG and JPEG files into bytes. Free of libtorch. Used by builtin/image_folder.cc; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::internal {

// Pixels [channels][height][width], one byte each: 1 channel (grey) or 3 (red, green, blue).
struct Image {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;
};

// The kind of file is told by its content. Transparency, palettes and 16-bit samples are converted.
// Throws Error(kBadFile) naming the file when it is missing, damaged, larger than 16,384 pixels a
// side, or neither PNG nor JPEG.
Image read_image(const std::string& path);

}  // namespace millrace::internal
