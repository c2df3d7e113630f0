// SPDX-License-Identifier: Apache-2.0
// The definition of index() and attend() in plain scalar code with double sums, one query at a time. It
// shares nothing with the fast paths and judges them.
#pragma once

#include "msa/msa.h"

namespace msa::reference {

// `row` is the query's row among all requests' queries, `request` the one it belongs to.
void index_query(const Plan& plan, const IndexParams& params, int request, int row);
void attend_query(const Plan& plan, const AttendParams& params, int request, int row);

// All queries, on the calling thread.
void index(const Plan& plan, const IndexParams& params);

// The score of each visible block of one (query row, index head), before any forcing: max over visible keys
// of q . k. `scores` has room for every block of the request; those of blocks in no share of this cache stay.
void block_scores(const Plan& plan, const IndexParams& params, int request, int row, int head, float* scores);

}  // namespace msa::reference
