// A folder of PNG and JPEG images of one size, with a CSV of labels: lines `file,label`, the file's
// path from the folder. Test images come from a second CSV, or are a share of the first, drawn by
// the run's seed.
//
// Labels that are all numbers are classes 0, 1, ...; otherwise each different label is a class, in
// alphabetical order. Pixels stay bytes in memory; a sample's value is (pixel / 255 - 0.5) / 0.5.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "millrace/base/file.h"
#include "millrace/base/random.h"
#include "millrace/data/dataset.h"
#include "millrace/data/internal/crop_mirror.h"
#include "millrace/data/internal/image_file.h"

namespace millrace {
namespace {

constexpr int64_t kMostClasses = 100000;
constexpr double kBlack = -1;

struct Row {
  std::string file;
  std::string label;
  int line = 0;
};

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r");
  return first == std::string::npos
             ? ""
             : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Lines of the CSV but empty ones and a first line `file,label`.
std::vector<Row> read_rows(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<Row> rows;
  std::map<std::string, int> seen;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty() || (rows.empty() && line == "file,label")) {
      continue;
    }
    const std::size_t comma = line.rfind(',');
    Row row;
    if (comma != std::string::npos) {
      row = {trimmed(line.substr(0, comma)), trimmed(line.substr(comma + 1)), number};
    }
    if (row.file.empty() || row.label.empty()) {
      throw std::move(
          Error(ErrorCode::kBadFile, fmt::format("expected `file,label`, found `{}`", line))
              .in_file(path, number));
    }
    const auto [before, is_new] = seen.emplace(row.file, number);
    if (!is_new) {
      throw std::move(Error(ErrorCode::kBadFile,
                            fmt::format("{} has a label already, in line {}; expected each file "
                                        "once",
                                        row.file, before->second))
                          .in_file(path, number));
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) {
    throw std::move(
        Error(ErrorCode::kBadFile, "expected lines `file,label`, found none").in_file(path));
  }
  return rows;
}

std::optional<int64_t> class_number(const std::string& label) {
  int64_t number = 0;
  const char* end = label.data() + label.size();
  const auto [rest, error] = std::from_chars(label.data(), end, number);
  return error == std::errc() && rest == end && number >= 0 && number < kMostClasses
             ? std::optional<int64_t>(number)
             : std::nullopt;
}

// Classes by label, over all rows that there are.
class Classes {
 public:
  void add(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      names_.insert(row.label);
      const std::optional<int64_t> number = class_number(row.label);
      all_numbers_ = all_numbers_ && number;
      largest_ = std::max(largest_, number.value_or(0));
    }
  }
  int64_t count() const {
    return all_numbers_ ? largest_ + 1 : static_cast<int64_t>(names_.size());
  }
  int64_t of(const std::string& label) const {
    return all_numbers_ ? *class_number(label) : std::distance(names_.begin(), names_.find(label));
  }

 private:
  std::set<std::string> names_;
  bool all_numbers_ = true;
  int64_t largest_ = 0;
};

// The form of all images: the first one's.
struct Form {
  std::string file;
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
};

class Images final : public Dataset {
 public:
  Images(Form form, int64_t num_classes) : form_(std::move(form)), num_classes_(num_classes) {}

  void add(const internal::Image& image, int64_t label) {
    pixels_.insert(pixels_.end(), image.pixels.begin(), image.pixels.end());
    labels_.push_back(label);
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  TensorSpec input() const override {
    return {{form_.channels, form_.height, form_.width}, at::kFloat};
  }
  TensorSpec target() const override { return {{}, at::kLong}; }
  int64_t num_classes() const override { return num_classes_; }

  Batch get(const int64_t* indices, int64_t count, at::ScalarType dtype) const override {
    MILLRACE_CHECK(dtype == at::kFloat || dtype == at::kDouble);
    Batch batch;
    batch.input = at::empty({count, form_.channels, form_.height, form_.width},
                            at::TensorOptions().dtype(dtype));
    batch.target = at::empty({count}, at::TensorOptions().dtype(at::kLong));
    int64_t* target = batch.target.data_ptr<int64_t>();
    const int64_t values = form_.channels * form_.height * form_.width;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = indices[i];
      MILLRACE_CHECK(index >= 0 && index < size(), fmt::format("sample {}", index));
      const uint8_t* image = pixels_.data() + index * values;
      if (dtype == at::kFloat) {
        convert(image, values, batch.input.data_ptr<float>() + i * values);
      } else {
        convert(image, values, batch.input.data_ptr<double>() + i * values);
      }
      target[i] = labels_[static_cast<std::size_t>(index)];
    }
    return batch;
  }

 private:
  template <typename T>
  static void convert(const uint8_t* pixels, int64_t n, T* out) {
    for (int64_t i = 0; i < n; ++i) {
      // Rounded once: float32 batches are float64 batches rounded.
      out[i] = static_cast<T>((static_cast<double>(pixels[i]) / 255.0 - 0.5) / 0.5);
    }
  }

  Form form_;
  int64_t num_classes_;
  std::vector<uint8_t> pixels_;
  std::vector<int64_t> labels_;
};

class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}

  std::string at(const std::string& name) const {
    return (std::filesystem::path(path_) / name).string();
  }

  std::unique_ptr<Images> read(const std::string& csv, const std::vector<Row>& rows,
                               const Classes& classes) {
    std::unique_ptr<Images> images;
    for (const Row& row : rows) {
      const internal::Image image = open(csv, row);
      if (form_.file.empty()) {
        form_ = {row.file, image.channels, image.height, image.width};
      }
      if (image.channels != form_.channels || image.height != form_.height ||
          image.width != form_.width) {
        throw std::move(
            Error(ErrorCode::kBadFile,
                  fmt::format("expected images of one size and colour, {} like {}, found {} in {}; "
                              "resize or convert it",
                              describe(form_.channels, form_.height, form_.width), form_.file,
                              describe(image.channels, image.height, image.width), row.file))
                .in_file(csv, row.line));
      }
      if (!images) {
        images = std::make_unique<Images>(form_, classes.count());
      }
      images->add(image, classes.of(row.label));
    }
    return images;
  }

 private:
  internal::Image open(const std::string& csv, const Row& row) const {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(at(row.file), ignored)) {
      throw std::move(Error(ErrorCode::kBadFile, fmt::format("expected an image {}, found no such "
                                                             "file",
                                                             at(row.file)))
                          .in_file(csv, row.line));
    }
    return internal::read_image(at(row.file));
  }

  static std::string describe(int64_t channels, int64_t height, int64_t width) {
    return fmt::format("{}x{} {}", width, height, channels == 1 ? "grey" : "colour");
  }

  std::string path_;
  Form form_;
};

// Moves a share of the rows, at least one and not all, to the result.
std::vector<Row> take_share(std::vector<Row>& rows, double share, uint64_t seed,
                            const std::string& csv) {
  const auto size = static_cast<int64_t>(rows.size());
  if (size < 2) {
    throw std::move(Error(ErrorCode::kBadFile,
                          "expected at least two images, one to train on and one to test, found "
                          "one; or name a second CSV as data.test_labels")
                        .in_file(csv));
  }
  const auto wanted = static_cast<int64_t>(share * static_cast<double>(size) + 0.5);
  const int64_t num_test = std::clamp<int64_t>(wanted, 1, size - 1);
  const std::vector<int64_t> order = permutation(RandomKey(seed).with("image-folder"), size);
  const std::set<int64_t> is_test(order.begin(), order.begin() + num_test);
  std::vector<Row> train;
  std::vector<Row> test;
  for (int64_t i = 0; i < size; ++i) {
    (is_test.contains(i) ? test : train).push_back(std::move(rows[static_cast<std::size_t>(i)]));
  }
  rows = std::move(train);
  return test;
}

}  // namespace

DataSplits image_folder(Reader& options, uint64_t seed) {
  const std::string path = options.text("path", "");
  const std::string labels = options.text("labels", "labels.csv");
  const std::string test_labels = options.text("test_labels", "");
  const double share = options.quantity("test_share", 0.2);
  const bool changes = internal::reads_crop_mirror(options);
  std::error_code ignored;
  if (path.empty() || !std::filesystem::is_directory(path, ignored)) {
    throw options.error("path", fmt::format("image-folder: expected the folder that holds {} and "
                                            "the images, found {}",
                                            labels, path.empty() ? "no path" : "no such folder"));
  }
  if (share <= 0 || share >= 1) {
    throw options.error("test_share", "expected a share between 0 and 1, such as 0.2");
  }
  Folder folder(path);
  const std::string csv = folder.at(labels);
  const std::string test_csv = test_labels.empty() ? csv : folder.at(test_labels);
  std::vector<Row> train = read_rows(csv);
  const std::vector<Row> test =
      test_labels.empty() ? take_share(train, share, seed, csv) : read_rows(test_csv);
  Classes classes;
  classes.add(train);
  classes.add(test);
  DataSplits splits;
  splits.train = folder.read(csv, train, classes);
  splits.test = folder.read(test_csv, test, classes);
  if (changes) {
    splits.train = internal::with_crop_mirror(std::move(splits.train), kBlack);
  }
  return splits;
}

}  // namespace millrace
