#include "wire/node_key.h"

#include <gmock/gmock.h>

#include "wire/protocol.h"

namespace phalanx::wire {
namespace {

using testing::HasSubstr;

const std::string kKey = "sixteen bytes ..";

v1::Hello HelloOf(const std::string& id, const std::string& key, uint32_t version = kProtocolVersion) {
  v1::Hello hello;
  hello.set_protocol_version(version);
  hello.set_node_id(id);
  hello.set_node_key(key);
  return hello;
}

TEST(NodeKey, TheIdIsOfTheKey) {
  // printf 'phalanx node id 1:sixteen bytes ..' | sha256sum | cut -c 1-32
  EXPECT_EQ(NodeIdOf(kKey), "35af38c690e136f14232725c3fc94673");
  EXPECT_EQ(NodeKeyFault(HelloOf(NodeIdOf(kKey), kKey)), "");
}

TEST(NodeKey, WhoKnowsTheIdAloneIsAnotherNode) {
  EXPECT_THAT(NodeKeyFault(HelloOf(NodeIdOf(kKey), "sixteen bytes .!")), HasSubstr("another node's"));
  EXPECT_THAT(NodeKeyFault(HelloOf(NodeIdOf(kKey), "")), HasSubstr("node key of 0 bytes: expected 16"));
  EXPECT_THAT(NodeKeyFault(HelloOf(NodeIdOf(kKey), kKey + kKey)), HasSubstr("node key of 32 bytes"));
  EXPECT_THAT(NodeKeyFault(HelloOf("", kKey)), HasSubstr("another node's"));
}

TEST(NodeKey, AnotherVersionIsRefusedForThat) { EXPECT_EQ(NodeKeyFault(HelloOf("a", "", kProtocolVersion - 1)), ""); }

}  // namespace
}  // namespace phalanx::wire
