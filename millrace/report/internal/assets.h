// The page's own files and the plotting library's, built into this library by
// cmake/EmbedAssets.cmake from millrace/report/assets.
#pragma once

#include <string_view>

namespace millrace::internal {

extern const std::string_view kPageTemplate;  // HTML with {{name}} where a value goes
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;
extern const std::string_view kTimelineScript;
extern const std::string_view kFigureTemplate;  // the page of one figure
extern const std::string_view kFigurePageStyle;
extern const std::string_view kFigureScript;
extern const std::string_view kPlotScript;  // uPlot, MIT
extern const std::string_view kPlotStyle;
extern const std::string_view kPlotLicence;

}  // namespace millrace::internal
