// Containers that count how many of their elements have been looked at. What one message costs in a world of 10,000
// nodes is then a number that a test can bound, on a noisy machine as on a quiet one: src/master/core/cost_test.cc.
//
// A walk counts each element that it steps to; a search in a map counts what a balanced tree compares with, the
// logarithm of the size. Counts follow the elements: whatever is assigned keeps what it has counted and adds the count
// of what it is assigned, so that moving elements from one to another loses no visit. One thread at a time, as with any
// container.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace phalanx {

template <typename It>
class CountedIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = typename std::iterator_traits<It>::value_type;
  using difference_type = std::ptrdiff_t;
  using reference = typename std::iterator_traits<It>::reference;
  using pointer = typename std::iterator_traits<It>::pointer;

  CountedIterator() = default;
  CountedIterator(It at, uint64_t* visits) : at_(at), visits_(visits) {}

  reference operator*() const { return *at_; }
  auto operator->() const { return &*at_; }
  CountedIterator& operator++() {
    ++at_;
    ++*visits_;
    return *this;
  }
  CountedIterator operator++(int) {
    const CountedIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountedIterator& a, const CountedIterator& b) { return a.at_ == b.at_; }

 private:
  It at_{};
  uint64_t* visits_ = nullptr;
};

// What both have in common: the elements and the count.
template <typename Container>
class Counted {
 public:
  using iterator = CountedIterator<typename Container::iterator>;
  using const_iterator = CountedIterator<typename Container::const_iterator>;

  Counted() = default;
  ~Counted() = default;
  Counted(const Counted&) = default;
  Counted(Counted&& other) noexcept : items_(std::move(other.items_)), visits_(std::exchange(other.visits_, 0)) {}
  Counted& operator=(const Counted& other) {
    items_ = other.items_;
    visits_ += other.visits_;
    return *this;
  }
  Counted& operator=(Counted&& other) noexcept {
    items_ = std::move(other.items_);
    visits_ += std::exchange(other.visits_, 0);
    return *this;
  }

  // Elements looked at so far.
  uint64_t visits() const { return visits_; }

  size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  void clear() { items_.clear(); }

  iterator begin() { return {items_.begin(), &visits_}; }
  iterator end() { return {items_.end(), &visits_}; }
  const_iterator begin() const { return {items_.begin(), &visits_}; }
  const_iterator end() const { return {items_.end(), &visits_}; }

 protected:
  Container items_;
  mutable uint64_t visits_ = 0;
};

template <typename Key, typename Value>
class CountedMap : public Counted<std::map<Key, Value>> {
 public:
  using typename Counted<std::map<Key, Value>>::iterator;
  using typename Counted<std::map<Key, Value>>::const_iterator;

  iterator find(const Key& key) { return {Searched().find(key), &this->visits_}; }
  const_iterator find(const Key& key) const { return {Searched().find(key), &this->visits_}; }
  bool contains(const Key& key) const { return Searched().contains(key); }
  Value& at(const Key& key) { return Searched().at(key); }
  const Value& at(const Key& key) const { return Searched().at(key); }
  Value& operator[](const Key& key) { return Searched()[key]; }
  size_t erase(const Key& key) { return Searched().erase(key); }
  auto extract(const Key& key) { return Searched().extract(key); }

 private:
  std::map<Key, Value>& Searched() {
    this->visits_ += static_cast<uint64_t>(std::bit_width(this->items_.size()));
    return this->items_;
  }
  const std::map<Key, Value>& Searched() const {
    this->visits_ += static_cast<uint64_t>(std::bit_width(this->items_.size()));
    return this->items_;
  }
};

template <typename Value>
class CountedVector : public Counted<std::vector<Value>> {
 public:
  CountedVector() = default;
  explicit CountedVector(std::vector<Value> items) { this->items_ = std::move(items); }

  Value& operator[](size_t index) { return Visited()[index]; }
  const Value& operator[](size_t index) const { return Visited()[index]; }
  Value& front() { return Visited().front(); }
  const Value& front() const { return Visited().front(); }
  Value& emplace_back() { return Visited().emplace_back(); }
  void push_back(Value value) { Visited().push_back(std::move(value)); }
  void resize(size_t size) {
    this->visits_ += size;
    this->items_.resize(size);
  }

  // Of an element of this one.
  size_t IndexOf(const Value& element) const { return static_cast<size_t>(&element - this->items_.data()); }

 private:
  std::vector<Value>& Visited() {
    ++this->visits_;
    return this->items_;
  }
  const std::vector<Value>& Visited() const {
    ++this->visits_;
    return this->items_;
  }
};

}  // namespace phalanx
