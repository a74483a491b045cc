#include <fmt/format.h>

#include <algorithm>

#include "millrace/report/internal/figure.h"
#include "millrace/report/report.h"

namespace millrace {

std::string timeline_svg(const Trace& trace, const std::string& title, TraceClock clock) {
  constexpr double kMargin = 12;
  constexpr double kLanesTop = 48;  // below title and summary
  const internal::Figure figure = internal::draw_figure(trace, title, clock, false);
  const double plot_left = kMargin + figure.label_width;
  const double facts_left = plot_left + figure.plot_width;
  const double legend_top = kLanesTop + figure.height + 6;
  const double width =
      kMargin + std::max(facts_left + figure.facts_width, kMargin + figure.legend_width);
  return fmt::format(
      R"svg(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" role="img">
<title>{2}</title>
<style>
{3}{4}</style>
{5}<rect width="100%" height="100%" fill="#fff"/>
<text x="{6}" y="22" style="font-weight: bold; font-size: 14px">{2}</text>
<text class="summary" x="{6}" y="40">{7}</text>
<g transform="translate({6} {8})">
{9}</g>
<g transform="translate({10:.0f} {8})">
{11}</g>
<g transform="translate({12:.0f} {8})">
{13}</g>
<g transform="translate({6} {14:.0f})">
{15}</g>
</svg>
)svg",
      width, legend_top + figure.legend_height + 6, figure.heading, internal::kFigureStyle,
      figure.style, internal::kFigureDefinitions, kMargin, figure.summary, kLanesTop, figure.labels,
      plot_left, figure.plot, facts_left, figure.facts, legend_top, figure.legend);
}

}  // namespace millrace
