// millrace report: the HTML page of a run, made anew from the files of its folder.
#include "millrace/report/report.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "millrace/base/error.h"
#include "millrace/base/file.h"
#include "millrace/cli/commands.h"
#include "millrace/cli/common/run_folder.h"
#include "millrace/cli/picture.h"

namespace millrace::cli {

namespace {

// timeline.svg or timeline.html in the run's folder: its measured lanes, or the predicted ones of a
// run that has none.
std::string write_picture(const ReportArgs& args, const RunReport& report) {
  const std::optional<Trace>& trace = report.measured ? report.measured : report.predicted;
  if (!trace) {
    throw Error(ErrorCode::kInvalidArgument,
                "--draw: the run has neither a measured nor a predicted trace; train it again")
        .in_file(args.dir);
  }
  std::string file = (std::filesystem::path(args.dir) / ("timeline." + args.draw)).string();
  write_file_atomically(file, picture(args.draw, *trace, report.title, TraceClock::kSeconds));
  return file;
}

}  // namespace

int run_report(const ReportArgs& args, Output& output) {
  if (!args.draw.empty()) {
    check_form(args.draw, {"svg", "html"});
  }
  const RunReport report = read_run(args.dir);
  const std::string page = write_report(args.dir, report);
  Value answer = Value::map();
  answer.set("report", Value::of(page));
  answer.set("steps", Value::of(static_cast<int64_t>(report.steps.size())));
  answer.set("ended", Value::of(report.done.has_value()));
  const std::string drawn = args.draw.empty() ? "" : write_picture(args, report);
  if (!drawn.empty()) {
    answer.set("timeline", Value::of(drawn));
  }
  output.document(answer);
  output.text(stage_table(report.plan, report.predicted.value_or(Trace{}),
                          report.measured.value_or(Trace{})));
  if (!report.done) {
    output.text("note: this run has not ended; the page shows what is there so far\n");
  }
  output.text(fmt::format("\n{}\n{}{}", page, drawn, drawn.empty() ? "" : "\n"));
  return 0;
}

}  // namespace millrace::cli
