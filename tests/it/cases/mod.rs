mod clock;
mod counting;
mod giving_back;
mod keys;
mod numbers;
mod remaining;
mod rules;
mod waiting;
