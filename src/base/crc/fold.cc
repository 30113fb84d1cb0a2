#include "base/crc/fold.h"

#include <libdeflate.h>

#include "base/crc/polynomial.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define PHX_WIDE [[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,vpclmulqdq,pclmul")]]

namespace phalanx {
namespace {

// Two factors that carry a 128-bit lane `kBits` further: the half that came first is a power of 64 more than the other.
// Each product is one power short (bits are counted from the top), which the shift makes up for.
template <uint64_t kBits>
PHX_WIDE inline __m512i Factors() {
  constexpr auto kFirst = static_cast<int64_t>(static_cast<uint64_t>(PowerOfX(kBits + 32)) << 1);
  constexpr auto kSecond = static_cast<int64_t>(static_cast<uint64_t>(PowerOfX(kBits - 32)) << 1);
  return _mm512_set_epi64(kSecond, kFirst, kSecond, kFirst, kSecond, kFirst, kSecond, kFirst);
}

PHX_WIDE inline __m512i Carry(__m512i lanes, __m512i factors, __m512i onto) {
  const __m512i first = _mm512_clmulepi64_epi128(lanes, factors, 0x00);
  const __m512i second = _mm512_clmulepi64_epi128(lanes, factors, 0x11);
  return _mm512_ternarylogic_epi64(first, second, onto, 0x96);  // all three, exclusive or
}

template <FoldStores kStores>
// What is stored is what is folded, also where somebody writes the source meanwhile: `to` may be `from` for all that
// the compiler knows, so that it reads once.
PHX_WIDE inline __m512i Take(uint8_t* to, const uint8_t* from, uint64_t at) {
  const __m512i data = _mm512_loadu_si512(from + at);
  if constexpr (kStores == FoldStores::kCached) _mm512_storeu_si512(to + at, data);
  if constexpr (kStores == FoldStores::kStreaming) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), data);
  return data;
}

template <FoldStores kStores>
PHX_WIDE uint32_t FoldAll(uint32_t state, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  constexpr uint64_t kLanes = 64;
  const __m512i before = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state)));
  __m512i a = _mm512_xor_si512(before, Take<kStores>(to, from, 0));
  __m512i b = Take<kStores>(to, from, kLanes);
  __m512i c = Take<kStores>(to, from, 2 * kLanes);
  __m512i d = Take<kStores>(to, from, 3 * kLanes);
  const __m512i by_turn = Factors<8 * kFoldBytes>();
  for (uint64_t at = kFoldBytes; at < bytes; at += kFoldBytes) {
    a = Carry(a, by_turn, Take<kStores>(to, from, at));
    b = Carry(b, by_turn, Take<kStores>(to, from, at + kLanes));
    c = Carry(c, by_turn, Take<kStores>(to, from, at + 2 * kLanes));
    d = Carry(d, by_turn, Take<kStores>(to, from, at + 3 * kLanes));
  }
  const __m512i by_lanes = Factors<8 * kLanes>();
  d = Carry(Carry(Carry(a, by_lanes, b), by_lanes, c), by_lanes, d);
  // What is left stands for all that was read: 64 bytes with the same remainder.
  alignas(64) uint8_t rest[kLanes];
  _mm512_store_si512(rest, d);
  return ~libdeflate_crc32(~0U, rest, sizeof rest);
}

}  // namespace

bool CanFold() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("vpclmulqdq") != 0;
}

uint32_t Fold(uint32_t state, uint8_t* to, const uint8_t* from, uint64_t bytes, FoldStores stores) {
  switch (stores) {
    case FoldStores::kNone:
      return FoldAll<FoldStores::kNone>(state, to, from, bytes);
    case FoldStores::kCached:
      return FoldAll<FoldStores::kCached>(state, to, from, bytes);
    case FoldStores::kStreaming:
      break;
  }
  return FoldAll<FoldStores::kStreaming>(state, to, from, bytes);
}

void StoreFence() { _mm_sfence(); }

}  // namespace phalanx

#else

namespace phalanx {

bool CanFold() { return false; }

uint32_t Fold(uint32_t state, uint8_t*, const uint8_t* from, uint64_t bytes, FoldStores) {
  return ~libdeflate_crc32(~state, from, bytes);
}

void StoreFence() {}

}  // namespace phalanx

#endif
