#include <fmt/format.h>

#include "millrace/report/internal/assets.h"
#include "millrace/report/internal/figure.h"
#include "millrace/report/internal/template.h"
#include "millrace/report/report.h"

namespace millrace {

std::string timeline_html(const Trace& trace, const std::string& title, TraceClock clock) {
  const internal::Figure figure = internal::draw_figure(trace, title, clock, true);
  const auto pixels = [](double value) { return fmt::format("{:.0f}", value); };
  return internal::fill(internal::kFigureTemplate,
                        {{"title", figure.heading},
                         {"summary", figure.summary},
                         {"figure_style", internal::kFigureStyle + figure.style},
                         {"style", std::string(internal::kFigurePageStyle)},
                         {"definitions", internal::kFigureDefinitions},
                         {"height", pixels(figure.height)},
                         {"label_width", pixels(figure.label_width)},
                         {"labels", figure.labels},
                         {"plot_width", pixels(figure.plot_width)},
                         {"narrowest", fmt::format("{:.3f}", figure.narrowest)},
                         {"plot", figure.plot},
                         {"facts_width", pixels(figure.facts_width)},
                         {"facts", figure.facts},
                         {"legend_width", pixels(figure.legend_width)},
                         {"legend_height", pixels(figure.legend_height)},
                         {"legend", figure.legend},
                         {"script", std::string(internal::kFigureScript)}});
}

}  // namespace millrace
