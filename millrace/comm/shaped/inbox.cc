#include "millrace/comm/shaped/inbox.h"

#include <algorithm>
#include <string>
#include <utility>

namespace millrace {
namespace {

constexpr uint8_t kStamp = 0x80;

}  // namespace

MessageTag stamp_of(MessageTag tag) {
  MILLRACE_CHECK(tag.kind < kStamp, "message kind " + std::to_string(tag.kind));
  tag.kind |= kStamp;
  return tag;
}

void Inbox::put(Arrived content) {
  if ((content.tag.kind & kStamp) != 0) {
    content.tag.kind &= static_cast<uint8_t>(~kStamp);
    stamps_.push_back({content.from, content.tag, *content.tensor.data_ptr<double>()});
    return;
  }
  const std::optional<double> arrival_s = take_stamp(content.from, content.tag);
  MILLRACE_CHECK(arrival_s.has_value(), to_string(content.tag) +
                                            " came without a time of arrival: a reduction's, at a "
                                            "lane where others receive whatever comes?");
  messages_.push_back({*arrival_s, std::move(content)});
}

const Inbox::Message* Inbox::earliest() const {
  const auto found = std::min_element(
      messages_.begin(), messages_.end(),
      [](const Message& a, const Message& b) { return a.arrival_s < b.arrival_s; });
  return found == messages_.end() ? nullptr : &*found;
}

Arrived Inbox::take_earliest() {
  const auto found = messages_.begin() + (earliest() - messages_.data());
  Arrived content = std::move(found->content);
  messages_.erase(found);
  return content;
}

std::optional<Inbox::Message> Inbox::take(int from, const MessageTag& tag) {
  const auto found = std::find_if(messages_.begin(), messages_.end(), [&](const Message& each) {
    return each.content.from == from && each.content.tag == tag;
  });
  if (found == messages_.end()) {
    return std::nullopt;
  }
  Message message = std::move(*found);
  messages_.erase(found);
  return message;
}

std::optional<double> Inbox::take_stamp(int from, const MessageTag& tag) {
  const auto found = std::find_if(stamps_.begin(), stamps_.end(), [&](const Stamp& each) {
    return each.from == from && each.tag == tag;
  });
  if (found == stamps_.end()) {
    return std::nullopt;
  }
  const double arrival_s = found->arrival_s;
  stamps_.erase(found);
  return arrival_s;
}

}  // namespace millrace
