#include "master/endpoint/first_bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace phalanx::master {
namespace {

const std::string kPlain = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kTls("\x16\x03", 2);
const std::string kStore("\x00\xce\xf7\x85\x3c", 5);

TEST(FirstBytes, CallersAreToldWhateverThePieces) {
  for (const auto& [whole, caller] :
       {std::pair(kPlain, Caller::kPlain), std::pair(kTls, Caller::kTls), std::pair(kStore, Caller::kStore)}) {
    for (size_t n = 0; n < whole.size(); ++n) EXPECT_EQ(WhoCalls(whole.substr(0, n)), Caller::kUnknown) << n;
    EXPECT_EQ(WhoCalls(whole), caller);
    EXPECT_EQ(WhoCalls(whole + "and more"), caller);
  }
}

TEST(FirstBytes, OthersAreStrangersAtTheFirstWrongByte) {
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n"), std::string("\x16\x02\x01", 3), std::string("PRI * HTTP/1.1"),
        std::string("\x00\xce\xf7\x85\x3d", 5), std::string("\x00\x00", 2), std::string("PO"), std::string("\x01")}) {
    EXPECT_EQ(WhoCalls(bytes), Caller::kStranger) << bytes;
  }
}

}  // namespace
}  // namespace phalanx::master
