#include "millrace/data/internal/image_file.h"

#include <csetjmp>
#include <cstddef>
// jpeglib.h uses size_t and FILE without including their headers.
#include <fmt/format.h>
#include <jpeglib.h>
#include <png.h>

#include <cstdio>
#include <string_view>

#include "millrace/base/error.h"
#include "millrace/base/file.h"

namespace millrace::internal {
namespace {

constexpr int64_t kMostSide = 16384;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw std::move(Error(ErrorCode::kBadFile, what).in_file(path));
}

void check_size(const std::string& path, int64_t width, int64_t height) {
  if (width < 1 || height < 1 || width > kMostSide || height > kMostSide) {
    refuse(path, fmt::format("expected an image of 1 to {} pixels a side, found {} x {}", kMostSide,
                             width, height));
  }
}

// From the files' order, channel by channel within a pixel, to channel planes.
Image planes_of(int64_t channels, int64_t height, int64_t width,
                const std::vector<uint8_t>& bytes) {
  Image image{channels, height, width, std::vector<uint8_t>(bytes.size())};
  const int64_t plane = height * width;
  for (int64_t i = 0; i < plane; ++i) {
    for (int64_t c = 0; c < channels; ++c) {
      image.pixels[static_cast<std::size_t>(c * plane + i)] =
          bytes[static_cast<std::size_t>(i * channels + c)];
    }
  }
  return image;
}

Image read_png(const std::string& path, const std::string& bytes) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) {
    refuse(path, fmt::format("not a PNG image that can be read: {}", png.message));
  }
  const bool colour = (png.format & PNG_FORMAT_FLAG_COLOR) != 0;
  png.format = colour ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  try {
    check_size(path, png.width, png.height);
  } catch (...) {
    png_image_free(&png);
    throw;
  }
  std::vector<uint8_t> pixels(PNG_IMAGE_SIZE(png));
  const png_color black{0, 0, 0};  // what shows through where a pixel is transparent
  if (png_image_finish_read(&png, &black, pixels.data(), 0, nullptr) == 0) {
    refuse(path, fmt::format("damaged PNG image: {}", png.message));
  }
  return planes_of(colour ? 3 : 1, png.height, png.width, pixels);
}

// libjpeg reports errors by not returning; this jumps back to whoever called it.
struct JpegErrors {
  jpeg_error_mgr manager;
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};

void leave(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  (*info->err->format_message)(info, errors->message);
  std::longjmp(errors->back, 1);
}

// What libjpeg decodes into. Outlives the jump: nothing with a destructor is made after setjmp.
struct JpegResult {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  bool too_large = false;
  std::vector<uint8_t> pixels;
};

bool decode_jpeg(const std::string& bytes, JpegErrors& errors, JpegResult& result) {
  jpeg_decompress_struct info{};
  info.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = leave;
  // Damage that libjpeg can read past is damage all the same.
  errors.manager.emit_message = [](j_common_ptr any, int level) {
    if (level < 0) {
      leave(any);
    }
  };
  if (setjmp(errors.back) != 0) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = info.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  result.channels = info.num_components == 1 ? 1 : 3;
  result.height = info.image_height;
  result.width = info.image_width;
  result.too_large = result.height > kMostSide || result.width > kMostSide;
  if (!result.too_large) {
    jpeg_start_decompress(&info);
    const auto row_bytes = static_cast<std::size_t>(result.width * result.channels);
    result.pixels.resize(static_cast<std::size_t>(result.height) * row_bytes);
    while (info.output_scanline < info.output_height) {
      unsigned char* row = result.pixels.data() + info.output_scanline * row_bytes;
      jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
  }
  jpeg_destroy_decompress(&info);
  return true;
}

Image read_jpeg(const std::string& path, const std::string& bytes) {
  JpegErrors errors{};
  JpegResult result;
  if (!decode_jpeg(bytes, errors, result)) {
    refuse(path, fmt::format("damaged JPEG image: {}", errors.message));
  }
  check_size(path, result.width, result.height);
  return planes_of(result.channels, result.height, result.width, result.pixels);
}

}  // namespace

Image read_image(const std::string& path) {
  constexpr uint64_t kMostBytes = 1U << 30U;
  const std::string bytes = read_file(path, kMostBytes);
  const std::string_view view = bytes;
  if (view.substr(0, 4) == "\x89PNG") {
    return read_png(path, bytes);
  }
  if (view.substr(0, 3) == "\xff\xd8\xff") {
    return read_jpeg(path, bytes);
  }
  refuse(path, "expected a PNG or JPEG image, found neither's first bytes");
}

}  // namespace millrace::internal
