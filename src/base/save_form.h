// What a save of a checkpoint directory is made up of, and who needs which of its files to restore it. Of the standard
// library alone: ranks have it too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace phalanx {

// Who needs a file to restore the save it is of. Numbers as in v1::FileNeed.
enum class FileNeed : uint8_t {
  kOwner = 0,      // the rank whose it is: a world of another size cannot restore the save
  kEveryRank = 1,  // it is the same on all nodes
  kAnyRank = 2,    // whichever rank asks for it, in a world of any size
  kNobody = 3,     // the rank whose it is takes it where it is there
};

// As manifests have them.
inline constexpr std::array<std::string_view, 4> kFileNeeds = {"owner", "every-rank", "any-rank", "nobody"};

constexpr std::string_view NameOf(FileNeed need) { return kFileNeeds.at(static_cast<size_t>(need)); }

// Nothing where no need is called so.
constexpr std::optional<FileNeed> FileNeedOf(std::string_view name) {
  for (size_t i = 0; i < kFileNeeds.size(); ++i) {
    if (kFileNeeds[i] == name) return static_cast<FileNeed>(i);
  }
  return std::nullopt;
}

// A save has an image of each rank, and may have one more on each node, which every rank needs.
struct SaveForm {
  FileNeed own = FileNeed::kOwner;  // of the ranks' images; not kEveryRank
  bool shared = false;              // there is one that every rank needs
  bool several = false;             // a rank's image holds any number of named files
  bool operator==(const SaveForm&) const = default;
};

// Each rank has a state of its own.
inline constexpr SaveForm kFullForm = {FileNeed::kOwner, false, false};
// All have the same state, and may have some more for themselves.
inline constexpr SaveForm kDdpForm = {FileNeed::kNobody, true, false};
// Each has a part of one state; what they share names the parts.
inline constexpr SaveForm kDcpForm = {FileNeed::kAnyRank, true, false};
// Each has files of whatever names; what they share says who has which.
inline constexpr SaveForm kFilesForm = {FileNeed::kAnyRank, true, true};

// What people call the forms that there are, also in manifests.
struct SaveKind {
  std::string_view name;
  SaveForm form;
};
inline constexpr std::array<SaveKind, 4> kSaveKinds = {
    {{"full", kFullForm}, {"ddp", kDdpForm}, {"dcp", kDcpForm}, {"files", kFilesForm}}};

constexpr std::string_view KindOf(const SaveForm& form) {
  for (const SaveKind& kind : kSaveKinds) {
    if (kind.form == form) return kind.name;
  }
  return "other";
}

// Nothing where no form is called so.
constexpr std::optional<SaveForm> FormOfKind(std::string_view name) {
  for (const SaveKind& kind : kSaveKinds) {
    if (kind.name == name) return kind.form;
  }
  return std::nullopt;
}

// As a number for a control page and for the ranks' native side: need, then two bits.
constexpr uint32_t NumberOf(const SaveForm& form) {
  return static_cast<uint32_t>(form.own) | (form.shared ? 4U : 0U) | (form.several ? 8U : 0U);
}

// Nothing where no save has such a form.
constexpr std::optional<SaveForm> FormOfNumber(uint32_t number) {
  if (number > 15) return std::nullopt;
  const SaveForm form = {static_cast<FileNeed>(number & 3U), (number & 4U) != 0, (number & 8U) != 0};
  if (form.own == FileNeed::kEveryRank) return std::nullopt;
  if (form.own == FileNeed::kNobody && !form.shared) return std::nullopt;  // nobody would need anything
  return form;
}

// Of a v1::SaveForm that was let in (IsForm), and back.
template <typename Wire>
SaveForm FormOf(const Wire& wire) {
  return {static_cast<FileNeed>(wire.own()), wire.shared(), wire.several()};
}
template <typename Wire>
void SetForm(Wire& wire, const SaveForm& form) {
  wire.set_own(static_cast<decltype(wire.own())>(form.own));
  wire.set_shared(form.shared);
  wire.set_several(form.several);
}
template <typename Wire>
bool IsForm(const Wire& wire) {
  const auto own = static_cast<int>(wire.own());
  return own >= 0 && own <= 3 && FormOfNumber(NumberOf(FormOf(wire))).has_value();
}

}  // namespace phalanx
