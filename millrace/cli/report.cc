// millrace report: the HTML page of a run, made anew from the files of its folder.
#include "millrace/report/report.h"

#include <fmt/format.h>

#include "millrace/cli/commands.h"
#include "millrace/cli/common/run_folder.h"

namespace millrace::cli {

int run_report(const ReportArgs& args, Output& output) {
  const RunReport report = read_run(args.dir);
  const std::string page = write_report(args.dir, report);
  Value answer = Value::map();
  answer.set("report", Value::of(page));
  answer.set("steps", Value::of(static_cast<int64_t>(report.steps.size())));
  answer.set("ended", Value::of(report.done.has_value()));
  output.document(answer);
  output.text(stage_table(report.plan, report.predicted.value_or(Trace{}),
                          report.measured.value_or(Trace{})));
  if (!report.done) {
    output.text("note: this run has not ended; the page shows what is there so far\n");
  }
  output.text(fmt::format("\n{}\n", page));
  return 0;
}

}  // namespace millrace::cli
