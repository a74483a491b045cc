// millrace eval: a checkpoint on its test set, every sample exactly once.
#include <fmt/format.h>

#include <filesystem>

#include "millrace/base/text.h"
#include "millrace/cli/common/catalog.h"
#include "millrace/cli/common/run_folder.h"
#include "millrace/cli/torch/commands.h"
#include "millrace/train/checkpoint.h"
#include "millrace/train/run_metrics.h"
#include "millrace/train/session.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

// The run folder a checkpoint belongs to: DIR, DIR/.., or DIR/../.. holds config.toml.
std::string run_dir_of(const std::string& dir) {
  fs::path path = fs::absolute(dir).lexically_normal();
  for (int up = 0; up < 4 && !path.empty(); ++up) {
    if (fs::exists(path / kConfigFile)) {
      return path.string();
    }
    path = path.parent_path();
  }
  throw Error(ErrorCode::kBadFile, std::string("no run folder here or above: expected ") +
                                       kConfigFile + " beside checkpoints/")
      .in_file(dir);
}

}  // namespace

int run_eval(const EvalArgs& args, Output& output) {
  const std::string checkpoint_path = resolve_checkpoint(args.dir);
  const std::string dir = run_dir_of(args.dir);
  const RunConfig config = read_run_config(dir + "/" + kConfigFile, {});
  const LoadedCheckpoint checkpoint = read_checkpoint(checkpoint_path);
  Job job;
  load_data_and_model(config, job);
  Session session({.model = &job.model,
                   .plan = plan_from(read_document(dir + "/" + kPlanFile)),
                   .policy = config.parallel.policy,
                   .train = config.train,
                   .timeout_s = config.parallel.timeout_s});
  load_into(checkpoint, session);
  const LossSums sums = session.evaluate(*job.data.test, config.train.batch);
  EvalEvent event;
  event.epoch = checkpoint.manifest.epoch;
  event.step = checkpoint.manifest.step;
  event.samples = sums.samples;
  event.correct = sums.correct;
  event.loss = sums.loss / static_cast<double>(sums.samples);
  event.predictions = sums.samples * job.model.predictions();
  event.accuracy = static_cast<double>(sums.correct) / static_cast<double>(event.predictions);
  output.document(to_value(event));
  output.text(fmt::format("{} at step {}: test accuracy {:.2f}% ({} of {}), loss {:.4f}\n",
                          checkpoint_path, event.step, 100 * event.accuracy,
                          format_count(event.correct), format_count(event.predictions),
                          event.loss));
  return 0;
}

}  // namespace millrace::cli
