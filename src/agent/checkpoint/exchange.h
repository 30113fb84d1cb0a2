// What nodes of a job read from each other's memory: this one's images are lent, others' are fetched into files beside
// them (docs/formats/image-read.md). On the agent's loop, but for FetchAll.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/checkpoint/selection.h"
#include "base/fd.h"
#include "base/save_key.h"
#include "base/status.h"
#include "checkpoint/remote/image_server.h"
#include "phalanx/v1/checkpoint.pb.h"

namespace phalanx::agent {

// Images that were found whole, as they are lent.
checkpoint::LentImages ToLend(const std::vector<ReadImage>& images);

// A file with an image of another node, or with parts of it.
struct FetchedFile {
  std::string path;
  std::optional<checkpoint::ByteRanges> parts;  // that are in it; none: all of it is
};

// What a fetch has come to: files by whose image it is.
struct FetchedFiles {
  std::map<int32_t, FetchedFile> files;
  std::string error;  // empty: all are there, or what could be read ahead; else none is
};
// What is to be read: of the images that the order, which has `restore`, names elsewhere.
struct FetchJob {
  v1::CheckpointOrder order;
  ImageParts parts;                      // of those; of all others all of it
  std::map<int32_t, std::string> begun;  // files that have other parts of them
  SaveForm form;                         // what a save of that form can do without is left out where nobody lends it
  std::string folder;                    // for new files
  uint64_t number = 0;                   // that tells them from others there
  // Before anybody has asked: what is read whole is worth having without the rest, and less memory is taken for it.
  bool ahead = false;
};
// Blocks until all is there, or nobody lends it, or `stop` can be read.
FetchedFiles FetchAll(const FetchJob& job, const Fd& stop);

class ImageExchange {
 public:
  // `address`: this node's, textual IP. Empty: nothing is lent.
  ImageExchange(std::string address, const checkpoint::LendingPorts& ports)
      : address_(std::move(address)), ports_(ports) {}
  ImageExchange(const ImageExchange&) = delete;
  ImageExchange& operator=(const ImageExchange&) = delete;
  // What was fetched goes.
  ~ImageExchange();

  bool lends() const { return !address_.empty(); }
  // From now on these are lent, and no others. Where others may read them; nothing where there are none. An error says
  // why nobody can.
  StatusOr<std::optional<v1::ImageSource>> Lend(checkpoint::LentImages images);

  // A round begins: what is being fetched is given up, and what was goes.
  void OnRound();
  // A newer save counts: nobody needs the older ones' images.
  void OnCommitted(const std::string& dir, const SaveKey& save);

  // What the next FetchAll is to be told.
  std::shared_ptr<const Fd> stop() const { return stop_; }
  // The same for one that reads ahead, which is given up before the round is over, too.
  std::shared_ptr<const Fd> ahead_stop() const { return ahead_stop_; }
  void StopAhead();
  // What was fetched for that directory goes; no rank was told of it.
  void Forget(const std::string& dir);
  uint64_t NextNumber() { return ++numbers_; }
  // Beside what was fetched of that save before; a second file of an image goes where the first has all of it. Where a
  // newer save is committed by now all of them go.
  void Keep(const std::string& dir, const SaveKey& save, const std::map<int32_t, FetchedFile>& files);
  // Of that save, whole images; empty where none of it was fetched.
  FetchedImages WholeOf(const std::string& dir, const SaveKey& save) const;
  // Where those parts are; empty: not all of them are here.
  std::string Find(const std::string& dir, const SaveKey& save, uint32_t rank,
                   const checkpoint::ByteRanges& ranges) const;
  // What is left to be fetched; with an order that names nothing elsewhere where all is here.
  FetchJob WithoutKept(const v1::CheckpointOrder& order, const ImageParts& parts) const;

 private:
  struct Kept {
    SaveKey save;
    std::map<int32_t, FetchedFile> files;
    std::vector<std::string> replaced;  // files with parts of images of which all is there now
    // Null: nothing of that rank's image is there.
    const FetchedFile* Of(int32_t rank) const {
      const auto file = files.find(rank);
      return file == files.end() ? nullptr : &file->second;
    }
  };
  static void Remove(const Kept& kept);
  const Kept* KeptOf(const std::string& dir, const SaveKey& save) const;

  const std::string address_;
  const checkpoint::LendingPorts ports_;
  std::unique_ptr<checkpoint::ImageServer> server_;
  std::shared_ptr<const Fd> stop_, ahead_stop_;
  std::map<std::string, Kept> kept_;          // by directory
  std::map<std::string, SaveKey> committed_;  // of the live round, the newest by directory
  uint64_t numbers_ = 0;
};

}  // namespace phalanx::agent
