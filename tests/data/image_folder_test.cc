// The dataset of images in a folder: images written by the test, splits, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
// jpeglib.h uses FILE without including its header.
#include <jpeglib.h>
#include <png.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "millrace/data/dataset.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Pixels = std::vector<unsigned char>;

class ImageFolder : public ::testing::Test {
 protected:
  ImageFolder() { std::filesystem::create_directories(path_ / "sub"); }
  ~ImageFolder() override { std::filesystem::remove_all(path_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

  void write_png(const std::string& name, unsigned width, unsigned height, bool colour,
                 const Pixels& pixels) const {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = width;
    image.height = height;
    image.format = colour ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
    ASSERT_NE(png_image_write_to_file(&image, (path_ / name).c_str(), 0, pixels.data(), 0, nullptr),
              0);
  }

  void write_jpeg(const std::string& name, unsigned width, unsigned height,
                  unsigned char grey) const {
    jpeg_compress_struct info{};
    jpeg_error_mgr errors{};
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    std::FILE* file = std::fopen((path_ / name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    jpeg_stdio_dest(&info, file);
    info.image_width = width;
    info.image_height = height;
    info.input_components = 1;
    info.in_color_space = JCS_GRAYSCALE;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, 100, TRUE);
    jpeg_start_compress(&info, TRUE);
    Pixels row(width, grey);
    for (unsigned y = 0; y < height; ++y) {
      unsigned char* at = row.data();
      jpeg_write_scanlines(&info, &at, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    std::fclose(file);
  }

  // `options` beside path, as JSON members.
  DataSplits open(const std::string& options = "", uint64_t seed = 1) const {
    const Document document = parse_json(
        R"({"path": ")" + path_.string() + "\"" + (options.empty() ? "" : ", ") + options + "}",
        "options");
    Reader reader(document);
    DataSplits splits = find_dataset("image-folder").make(reader, seed);
    reader.finish();
    return splits;
  }

  std::string refusal(const std::string& options = "") const {
    try {
      open(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path path_ =
      std::filesystem::path(::testing::TempDir()) / ("images-" + std::to_string(getpid()));
};

Batch all_of(const Dataset& data) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < data.size(); ++i) {
    indices.push_back(i);
  }
  return data.get(indices.data(), data.size(), at::kFloat);
}

TEST_F(ImageFolder, ReadsPngAndJpegByTheirContent) {
  write_png("a.png", 3, 2, false, {0, 51, 102, 153, 204, 255});
  write_jpeg("sub/b.dat", 3, 2, 255);
  write_png("c.png", 3, 2, false, Pixels(6, 255));
  write("labels.csv", "file,label\na.png,1\n\nsub/b.dat , 0\r\n");
  write("test.csv", "c.png,2\n");
  const DataSplits splits = open(R"("test_labels": "test.csv")");
  EXPECT_EQ(splits.train->input(), (TensorSpec{{1, 2, 3}}));
  EXPECT_EQ(splits.train->size(), 2);
  EXPECT_EQ(splits.test->size(), 1);
  EXPECT_EQ(splits.train->num_classes(), 3) << "a class may stand in one file only";
  const Batch batch = all_of(*splits.train);
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_FLOAT_EQ(batch.input.data_ptr<float>()[i], -1.0F + 0.4F * static_cast<float>(i));
    EXPECT_FLOAT_EQ(batch.input.data_ptr<float>()[6 + i], 1.0F);
  }
  EXPECT_EQ(batch.target.data_ptr<int64_t>()[0], 1);
  EXPECT_EQ(batch.target.data_ptr<int64_t>()[1], 0);
}

TEST_F(ImageFolder, ColourIsThreePlanes) {
  write_png("a.png", 2, 1, true, {255, 0, 51, 0, 255, 204});
  write_png("b.png", 2, 1, true, Pixels(6, 0));
  write("labels.csv", "a.png,cat\nb.png,ant\n");
  write("test.csv", "b.png,bee\n");
  const DataSplits splits = open(R"("test_labels": "test.csv")");
  EXPECT_EQ(splits.train->input(), (TensorSpec{{3, 1, 2}}));
  const Batch batch = all_of(*splits.train);
  const std::vector<float> expected = {1, -1, -1, 1, -0.6F, 0.6F};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_FLOAT_EQ(batch.input.data_ptr<float>()[i], expected[i]) << i;
  }
  // ant, bee, cat
  EXPECT_EQ(splits.train->num_classes(), 3);
  EXPECT_EQ(batch.target.data_ptr<int64_t>()[0], 2);
  EXPECT_EQ(batch.target.data_ptr<int64_t>()[1], 0);
  EXPECT_EQ(all_of(*splits.test).target.data_ptr<int64_t>()[0], 1);
}

TEST_F(ImageFolder, AShareIsDrawnBySeedAndNothingIsLost) {
  std::string csv;
  for (unsigned i = 0; i < 10; ++i) {
    write_png(std::to_string(i) + ".png", 1, 1, false, {static_cast<unsigned char>(i)});
    csv += std::to_string(i) + ".png,7\n";
  }
  write("labels.csv", csv);
  const auto tested = [&](const DataSplits& splits) {
    std::set<float> values;
    const Batch batch = all_of(*splits.test);
    for (int64_t i = 0; i < splits.test->size(); ++i) {
      values.insert(batch.input.data_ptr<float>()[i]);
    }
    return values;
  };
  const DataSplits splits = open(R"("test_share": 0.3)");
  EXPECT_EQ(splits.test->size(), 3);
  EXPECT_EQ(splits.train->size(), 7);
  std::set<float> all = tested(splits);
  const Batch train = all_of(*splits.train);
  for (int64_t i = 0; i < 7; ++i) {
    all.insert(train.input.data_ptr<float>()[i]);
  }
  EXPECT_EQ(all.size(), 10U);
  EXPECT_EQ(splits.train->num_classes(), 8);
  EXPECT_EQ(tested(open(R"("test_share": 0.3)")), tested(splits));
  std::set<std::set<float>> draws;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    draws.insert(tested(open(R"("test_share": 0.3)", seed)));
  }
  EXPECT_GT(draws.size(), 1U);
}

TEST_F(ImageFolder, RefusalsNameFileAndLine) {
  EXPECT_THAT(refusal(), HasSubstr("labels.csv"));
  write("labels.csv", "\n\n");
  EXPECT_THAT(refusal(), HasSubstr("found none"));
  write_png("a.png", 3, 2, false, Pixels(6, 9));
  write_png("b.png", 2, 3, false, Pixels(6, 9));
  write_png("c.png", 3, 2, true, Pixels(18, 9));
  write("labels.csv", "file,label\na.png,0\nb.png\n");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("labels.csv:3"), HasSubstr("`b.png`")));
  write("labels.csv", "a.png,0\nb.png,1\na.png,1\n");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("labels.csv:3"), HasSubstr("in line 1")));
  write("labels.csv", "a.png,0\n");
  EXPECT_THAT(refusal(), HasSubstr("at least two"));
  write("test.csv", "a.png,0\nb.png,1\n");
  EXPECT_THAT(refusal(R"("test_labels": "test.csv")"),
              AllOf(HasSubstr("test.csv:2"), HasSubstr("3x2 grey like a.png"),
                    HasSubstr("2x3 grey in b.png")));
  write("test.csv", "c.png,0\n");
  EXPECT_THAT(refusal(R"("test_labels": "test.csv")"), HasSubstr("3x2 colour in c.png"));
  write("test.csv", "a.png,0\nd.png,1\n");
  EXPECT_THAT(refusal(R"("test_labels": "test.csv")"),
              AllOf(HasSubstr("test.csv:2"), HasSubstr("d.png"), HasSubstr("no such file")));
  EXPECT_THAT(refusal(R"("test_share": 1.0)"), HasSubstr("test_share"));
  write("test.csv", "a.png,0\n");
  EXPECT_THAT(refusal(R"("tset_share": 0.5, "test_labels": "test.csv")"), HasSubstr("tset_share"));
  const Document nothing = parse_json("{}", "options");
  Reader reader(nothing);
  EXPECT_THROW(find_dataset("image-folder").make(reader, 1), Error);
}

TEST_F(ImageFolder, DamagedImagesAreRefused) {
  write_png("whole.png", 20, 20, false, Pixels(400, 9));
  write_jpeg("whole.jpg", 20, 20, 100);
  const auto cut = [&](const std::string& from, const std::string& to) {
    std::ifstream in(path_ / from, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    write(to, bytes.substr(0, bytes.size() * 2 / 3));
  };
  cut("whole.png", "cut.png");
  cut("whole.jpg", "cut.jpg");
  write("text.png", "no image at all");
  for (const auto& [name, text] :
       {std::pair{"cut.png", "PNG"}, {"cut.jpg", "JPEG"}, {"text.png", "neither"}}) {
    write("labels.csv", std::string("whole.png,0\n") + name + ",1\n");
    EXPECT_THAT(refusal(), AllOf(HasSubstr(name), HasSubstr(text)));
  }
}

}  // namespace
}  // namespace millrace
