mod counting;
mod giving_back;
mod numbers;
mod remaining;
mod rules;
mod waiting;
