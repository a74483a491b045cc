// millrace verify: a configuration against one process.
#include "millrace/train/verify.h"

#include <fmt/format.h>

#include <array>

#include "millrace/base/text.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/torch/commands.h"

namespace millrace::cli {
namespace {

struct Part {
  const char* name;
  int64_t MemoryUse::*bytes;
};
constexpr std::array<Part, 4> kParts = {{{"weight", &MemoryUse::weight_bytes},
                                         {"gradient", &MemoryUse::gradient_bytes},
                                         {"optimizer", &MemoryUse::optimizer_bytes},
                                         {"stash", &MemoryUse::stash_bytes}}};

Value to_value(const VerifyResult& result) {
  Value value = Value::map();
  value.set("equal", Value::of(result.equal));
  value.set("steps", Value::of(result.steps));
  // JSON has no infinity: a difference that is not finite is null.
  const double worst = result.max_relative_difference;
  value.set("max_relative_difference", worst - worst == 0 ? Value::of(worst) : Value());
  value.set("tolerance", Value::of(result.tolerance));
  value.set("oracle", Value::of(result.oracle));
  value.set("compared_tensors", Value::of(result.compared));
  Value first;
  if (result.first_difference) {
    const Difference& difference = *result.first_difference;
    first = Value::map();
    first.set("step", Value::of(difference.step));
    first.set("stage", Value::of(difference.stage));
    first.set("layer", Value::of(difference.layer));
    first.set("what", Value::of(difference.what));
  }
  value.set("first_difference", first);
  Value notes = Value::list();
  for (const std::string& note : result.notes) {
    notes.push(Value::of(note));
  }
  value.set("notes", notes);
  Value memory = Value::list();
  for (const VerifiedMemory& rank : result.memory) {
    Value item = Value::map();
    item.set("rank", Value::of(rank.rank));
    for (const Part& part : kParts) {
      item.set(fmt::format("measured_{}_bytes", part.name), Value::of(rank.measured.*part.bytes));
      item.set(fmt::format("predicted_{}_bytes", part.name), Value::of(rank.predicted.*part.bytes));
    }
    memory.push(std::move(item));
  }
  value.set("memory", std::move(memory));
  return value;
}

// "measured / predicted" of each part.
std::string memory_table(const VerifyResult& result) {
  TextTable table({"memory, measured / predicted", "weights", "gradients", "optimizer", "stash"});
  for (const VerifiedMemory& rank : result.memory) {
    std::vector<std::string> cells = {fmt::format("rank {}", rank.rank)};
    for (const Part& part : kParts) {
      cells.push_back(fmt::format("{} / {}",
                                  format_bytes(static_cast<double>(rank.measured.*part.bytes)),
                                  format_bytes(static_cast<double>(rank.predicted.*part.bytes))));
    }
    table.row(cells);
  }
  return table.str();
}

}  // namespace

int run_verify(const VerifyArgs& args, Output& output) {
  const RunConfig config = read_run_config(args.run.config, args.run.set);
  VerifyOptions options;
  options.steps = args.steps;
  if (!args.fault.empty()) {
    options.fault = parse_break(args.fault);
  }
  PreparationSink preparation(output);
  const VerifyResult result = verify(
      config, {.cache_dir = cache_dir(), .fresh = args.run.fresh, .sink = &preparation}, options);
  output.end_progress();
  output.document(to_value(result));
  for (const std::string& note : result.notes) {
    output.text("note: " + note + "\n");
  }
  output.text(fmt::format(
      "oracle: {}; {}\n", result.oracle,
      result.tolerance == 0
          ? std::string("bit for bit")
          : fmt::format("within {:g} of the largest value of a tensor", result.tolerance)));
  output.text(memory_table(result));
  if (result.equal) {
    output.text(fmt::format("equal: {} steps, {} comparisons, largest difference {:.3g}\n",
                            result.steps, result.compared, result.max_relative_difference));
    return 0;
  }
  const Difference& first = *result.first_difference;
  output.text(
      fmt::format("NOT equal: the first difference is the {} of layer {} (stage {}) in step {}: "
                  "{:.3g} relative; "
                  "largest over {} steps {:.3g}\n",
                  first.what, first.layer, first.stage, first.step, first.relative, result.steps,
                  result.max_relative_difference));
  return 1;
}

}  // namespace millrace::cli
